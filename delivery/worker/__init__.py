"""Sends what lines hold: one event loop in each worker process.

Read `process` (the threads), `run_lines` (one turn), `line` and `steps` (what a line knows and asks for),
`topic` and `queue` (the two kinds of line), `pages` (what to send next), `event_loop` with `waits`, then
`pending_settles`, `settle` and `settle_sql` (recording outcomes).
"""
