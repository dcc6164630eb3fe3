"""What publishers, subscribers and management do over HTTP with messages, deliveries and lines.

Read `publish` (with `publish_requests` and `sync_and_volatile`), `messages`, `deliveries` and `callbacks`; then
`mailboxes` and `receipts`; then `operations`, `replays` and `trials`. `lines` has the state of lines, `problems` what
exceptions mean, `urls` the addresses.
"""
