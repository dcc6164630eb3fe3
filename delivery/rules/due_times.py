"""Due times that never come: what waits for somebody, not for a moment, is met by no page until then."""

import datetime as dt
from typing import Final

UNTIL_RELEASED: Final = dt.datetime(9999, 12, 31, tzinfo=dt.UTC)
"""Of what is HELD (behaviour 3.6): behind all that is ever due."""
UNTIL_ACTIVE: Final = dt.datetime(9999, 12, 30, tzinfo=dt.UTC)
"""Of a QUEUE group, and its deliveries, none of whose subscriptions is active (behaviour 1.7): until one is."""

RELEASED: Final = f"'{UNTIL_RELEASED}'::timestamptz"
ACTIVE: Final = f"'{UNTIL_ACTIVE}'::timestamptz"
"""The same in SQL, as a constant: so the planner knows how many wait."""
