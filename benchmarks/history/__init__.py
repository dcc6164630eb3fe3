"""A history as days of use would leave it, of any size and always the same: written straight into the tables.

It keeps what the broker promises: each subscriber's deliveries are sent in order, and once. Nobody is active in it, so
that a broker beside it sends nothing of it.

`endings` (which statuses, which errors) · `participants` · `fetched`, `lives` (what happened, as temporary tables) ·
`rows` (what is stored of it) · `writing`
"""

from benchmarks.history.history import History

__all__ = ["History"]
