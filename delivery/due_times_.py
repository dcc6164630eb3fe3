"""Due times that never come: what waits for somebody, not for a moment, is met by no page until then."""

import datetime as dt
from typing import Final

UNTIL_RELEASED: Final = dt.datetime(9999, 12, 31, tzinfo=dt.UTC)
"""Of what is HELD (behaviour 3.6): behind all that is ever due."""
UNTIL_ACTIVE: Final = dt.datetime(9999, 12, 30, tzinfo=dt.UTC)
"""Of a QUEUE group, and its deliveries, none of whose subscriptions is active (behaviour 1.7): until one is."""
UNTIL_DUE: Final = dt.datetime(9999, 12, 29, tzinfo=dt.UTC)
"""Of what is delayed (behaviour 2.13): until its own `not_before`, and then it is as if published just now."""
UNTIL_RETURNED: Final = dt.datetime(9999, 12, 28, tzinfo=dt.UTC)
"""Of what a mailbox has handed out (behaviour 9.1): no line marks, reads or sweeps it, whatever its time-out."""

RELEASED: Final = f"'{UNTIL_RELEASED}'::timestamptz"
ACTIVE: Final = f"'{UNTIL_ACTIVE}'::timestamptz"
DUE_LATER: Final = f"'{UNTIL_DUE}'::timestamptz"
RETURNED: Final = f"'{UNTIL_RETURNED}'::timestamptz"
"""The same in SQL, as a constant: so the planner knows how many wait."""

FIRST_SENTINEL: Final = RETURNED
"""What is due before it is due at a moment."""
