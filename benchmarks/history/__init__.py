"""A history as days of use would leave it, of any size and always the same, written straight into the tables.

It follows the contract: each subscriber's deliveries are sent in order, and once. All its subscribers are inactive, so
that a broker on the same database sends none of it. Read `history`, then `statements`.
"""

from benchmarks.history.history import History

__all__ = ["History"]
