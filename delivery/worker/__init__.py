"""Sends what lines hold: one event loop in each worker process.

Read `process` (threads, one turn), `line`, `order` and `slots` (what a line knows, holds and asks for, and the states
of a slot), `topic` and `queue` (the two kinds of line), `pages`, `page_sql` and `buffer` (what is sent next), `leases`
(how a line comes and goes), `event_loop` and `rounds` (a round), then `round_trip`, `settle_sql` and `queue_settle`
(recording outcomes, also when that fails), and `isolation` (poison messages). `line.pml` is a model of a line's
protocol that `./broker model` checks.
"""
