"""Callbacks of QUEUE messages: the addresses that endpoints are given, and the replies that they post there.

`tokens` · `terms` (our address, the keys, how long they live) · `making` (at publish) · `addressing` (what an endpoint
finds in its request, where a reply goes) · `replying` · `expiring` (what nobody came for in time).
"""
