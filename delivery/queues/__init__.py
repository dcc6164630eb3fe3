"""QUEUE: each message to one endpoint of its group; what senders do otherwise than the lines of subscribers.

`groups` (a group in hand, and in which order its endpoints are tried) · `reading` (what may be sent next) · `sending`
(the story of a strand) · `settle_statements`, `settling`.
"""
