"""What has been sent, or never was, lined up once more: one delivery, many, or all that a new subscription has missed.

`replaying` (many, at a pace) · `backfilling` (the messages of before a subscription).
"""
