"""Limits that several packages depend on: time-outs, leases and sizes, each with its reason."""

from typing import Final

REQUEST_DEADLINE_SECONDS: Final = 15.0
"""A request has ended after so long, whatever the endpoint does."""
LEASE_SECONDS: Final = 20.0
"""A line may be taken over so long after its last renewal."""
LEASE_MARGIN_SECONDS: Final = 2.0
"""What a request may need beyond its deadline; a request starts only if it fits into the lease."""

REFILL_LEVEL: Final = 0.4
"""The share of its last page at which a line reads on (contract 11.1)."""
MAX_LINE_BYTES: Final = 1024 * 1024
"""Bodies that a line has in hand at most; one delivery is always allowed."""
