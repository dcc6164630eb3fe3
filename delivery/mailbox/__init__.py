"""The pull mailbox (contract 9).

Read `mailbox` (receipts), `fetch_messages`, `acknowledge` with `results`, `long_poll`, then `unread` and
`mailbox_status`.
"""
