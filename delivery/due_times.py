"""SQL that open deliveries share: due times that never come, and how a finished delivery leaves the open partition."""

import datetime as dt
from typing import Final, LiteralString

UNTIL_RELEASED: Final = dt.datetime(9999, 12, 31, tzinfo=dt.UTC)
"""Of what is HELD (contract 3.6): behind all that is ever due."""
UNTIL_ACTIVE: Final = dt.datetime(9999, 12, 30, tzinfo=dt.UTC)
"""Of a QUEUE group, and its deliveries, none of whose subscriptions is active (contract 1.7): until one is."""
UNTIL_DUE: Final = dt.datetime(9999, 12, 29, tzinfo=dt.UTC)
"""Of what is delayed (contract 2.13): until its own `not_before`, and then it is as if published just now."""
UNTIL_RETURNED: Final = dt.datetime(9999, 12, 28, tzinfo=dt.UTC)
"""Of what was fetched from a mailbox (contract 9.1): no line marks, reads or sweeps it, even after its time-out."""

RELEASED: Final = f"'{UNTIL_RELEASED}'::timestamptz"
ACTIVE: Final = f"'{UNTIL_ACTIVE}'::timestamptz"
DUE_LATER: Final = f"'{UNTIL_DUE}'::timestamptz"
RETURNED: Final = f"'{UNTIL_RETURNED}'::timestamptz"
"""The same in SQL, as a constant: so the planner knows how many wait."""

FIRST_SENTINEL: Final = RETURNED
"""What is due before it is due at a moment."""

FILED_COLUMNS: Final[tuple[LiteralString, ...]] = (
    *("id", "message_id", "line_id", "subscription_id", "group_id", "status", "size", "attempts", "times_deferred"),
    *("due_at", "sequence", "uncertain", "cancel_requested", "reason", "created_at", "expires_at", "not_before"),
    *("resubmit_of", "replay_id", "fetches", "unreceived"),
)
"""The columns that a delivery keeps when it ends: those of every CTE `gone`."""


def gone_columns(**computed: LiteralString) -> LiteralString:
    """Return the RETURNING list of a CTE `gone`: `FILED_COLUMNS` of a row `d`, or the SQL given for a column."""
    return ", ".join(f"{computed.get(name, f'd.{name}')} AS {name}" for name in FILED_COLUMNS)


CANCELLED_UNKNOWN_OUTCOME: Final = gone_columns(
    status="'CANCELLED'", uncertain="true", reason="'cancelled while its outcome was unknown'"
)

IN_DOUBT: Final = "sequence IS NOT NULL AND (unreceived OR uncertain AND (attempts = 0 OR fetches = 0))"
"""Whether a row's number may never have been received: no request has been answered, or the last one may not have been.

A fetch from a mailbox that timed out makes a delivery uncertain too, and says nothing of a number once answered.
"""

HISTORY_LINE: Final = """COALESCE((SELECT m.id FROM delivery_line l JOIN delivery_line m USING (subscriber_id)
                    WHERE l.id = line_id AND m.lane = 'main'), line_id)"""
"""The line whose history has the events of a row: for a retry line the main line, which gave the numbers."""

_COLUMNS: Final = ", ".join(FILED_COLUMNS)
FILE_GONE: Final = f"""
  INSERT INTO delivery_delivery ({_COLUMNS}, finished_at, closed_on)
  SELECT {_COLUMNS}, clock_timestamp(),
         (SELECT day
            FROM delivery_storageday CROSS JOIN (SELECT (clock_timestamp() AT TIME ZONE 'UTC')::date) AS n (now)
           WHERE dropped_at IS NULL ORDER BY day > now, abs(day - now) LIMIT 1)
    FROM gone"""
"""File the rows of a CTE `gone`, deleted from `delivery_open`, under today.

DELETE and INSERT, not an UPDATE that moves the row: a statement that waited for the row finds it gone, not an error.
The day is the newest that has a partition, so a late maintenance job stops nothing; or the first one that has, so
neither does a clock set back.
"""


def end_deliveries(which: LiteralString, *, note: LiteralString, **computed: LiteralString) -> LiteralString:
    """Return the CTEs that end the open deliveries with the ids `which`; the ended rows are the CTE `gone`.

    `computed` is the SQL of columns that change. The line's history gets a `note`, which is SQL too, of each number
    that may never have been received.
    """
    return f"""
gone AS (
  DELETE FROM delivery_open d WHERE d.closed_on = '9999-12-31' AND d.id = ANY (ARRAY({which}))
  RETURNING {gone_columns(**computed)}),
filed AS ({FILE_GONE}),
told AS (
  INSERT INTO delivery_lineevent (line_id, at, kind, sequence, delivery_id, reason)
  SELECT {HISTORY_LINE}, clock_timestamp(), 'NUMBER_UNCERTAIN', sequence, id, {note} FROM gone WHERE {IN_DOUBT})"""
