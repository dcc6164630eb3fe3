"""Callbacks of QUEUE messages: addresses that endpoints are given, and the replies that they post there.

Read `create` (at publish), `address` (what an endpoint finds in its request), then `reply`. Where a reply goes is in
`delivery.webhook.destination`. Callbacks without a reply in time are deleted by `delivery.maintenance.expiry`.
"""
