"""What has been sent, or never was, lined up once more: one delivery, many, or all that a new subscription has missed.

`refusals` (what cannot be) · `lining_up` (new deliveries of what is stored) · `resubmitting` (one) · `republishing` (a
message that nobody got) · `selecting`, `replaying` (which of many, and at what pace) · `missed`, `reserving`,
`backfilling` (the messages of before a subscription, in the place of their ids).
"""
