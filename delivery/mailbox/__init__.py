"""The pull mailbox (contract 9).

Read `receipts`, `available` and `fetch_messages` (what is fetched), `acknowledge`, `long_poll`, then `unread`
(time-outs, expiry and purge) and `mailbox_status`.
"""
