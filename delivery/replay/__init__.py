"""What has been sent, or never was, lined up once more: one delivery, many, or all that a new subscription has missed.

`refusals` (what cannot be) · `families` (QUEUE jobs and what repeats them) · `lining_up` (new deliveries of what is
stored) · `resubmitting` (one) · `republishing` (a message that nobody got) · `selections`, `walking`, `selecting`
(which of many, met a stretch at a time) · `ending`, `stepping` (what all jobs have in common) · `replaying` (many
deliveries) · `locating`, `missed`, `reserving`, `placing`, `backfilling` (the messages of before a subscription, in the
place of their ids).
"""
