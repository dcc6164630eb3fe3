"""Publishing: from a request to a stored message with a delivery for each subscription that qualifies.

Read `draft` and `cloud_events` (what is sent in), `accept` (checks), `routing` (who gets it), `publish` with
`idempotency`, then `store` (one statement).
"""
