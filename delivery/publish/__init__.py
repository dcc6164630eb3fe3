"""Publishing: from a request to a stored message with a delivery for each subscription that qualifies.

Read `draft` and `cloud_events` (what is sent in), `publish` (the checks, and the transaction) with `idempotency` and
`open_messages`, `routing` (which subscriptions get it), then `store` (one statement).
"""
