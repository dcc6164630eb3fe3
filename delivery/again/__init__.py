"""What has been sent, or never was, lined up once more: one delivery, many, or all that a new subscription has missed.

`refusals` (what cannot be) · `lining_up` (new deliveries of what is stored) · `resubmitting` (one) · `replaying` (many,
at a pace) · `backfilling` (the messages of before a subscription).
"""
