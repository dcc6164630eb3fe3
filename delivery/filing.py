"""SQL that statements on open deliveries share: what is due, walks of an index, and how a finished one is filed."""

from typing import Final, LiteralString

from subscriptions.names import OWN_EVENTS

IS_DUE: Final = """(d.waits_for = 'TURN' OR d.due_at <= clock_timestamp()
          OR (SELECT h.delivery_id FROM delivery_hold h WHERE h.delivery_id = d.id) IS NOT NULL)"""
"""Whether a PENDING row `d` may be sent as far as time is concerned: only what waits for a RETRY has a `due_at`.

What is held goes by its hold, even if the clock was set back behind its `due_at`: pages have it all the same.
"""

LIVES: Final = "(d.expires_at IS NULL OR d.expires_at > (SELECT clock_timestamp()))"
"""Whether a row `d` has not expired; those that have wait for a periodic job, maybe for minutes (contract 11.7)."""

IS_SENT_IN: Final = "s.is_sending AND CASE l.lane WHEN 'main' THEN s.diverted_since IS NULL ELSE NOT s.half_open END"
"""Whether a line `l` sends to a subscription `s`: a main line to half-open ones, and a retry line to diverted ones."""

IS_OWN: Final = f"""
  starts_with(COALESCE((SELECT name FROM subscriptions_eventtype WHERE id = s.event_type_id), s.event_pattern),
              '{OWN_EVENTS}')"""
"""Whether a subscription `s` is to events of the broker's own."""

LINE: Final = "LATERAL (SELECT * FROM delivery_line n WHERE n.id = {} ORDER BY n.epoch DESC LIMIT 1)"
"""A line, to be joined by statements that do not know its epoch; format with its id.

A lease that is renewed leaves a dead version of its line, and while somebody holds a snapshot it stays: thousands in an
hour. By line and epoch, an index has few of them, and the newest first.
"""
MAIN_LINE: Final = """LATERAL (
      SELECT * FROM delivery_line n WHERE n.subscriber_id = {} AND n.lane = 'main' ORDER BY n.epoch DESC LIMIT 1)"""
"""The same of a subscriber's main line; format with its id."""

SHORT_LOCK_WAIT: Final = "(SELECT set_config('lock_timeout', '50', true)) IS NOT NULL"
"""Always true; no statement of its transaction waits longer than 50 ms for a row that somebody has locked."""

APART: Final = "(d.due_at IS NOT NULL OR d.waits_for = 'RELEASE')"
"""What is found by its line too, in the words of the index: each of a subscriber's two lines may have some of it."""

LINES_APART: Final = f"""
apart AS (
  (SELECT d.subscription_id, d.line_id FROM delivery_open d
    WHERE {APART} ORDER BY d.subscription_id, d.line_id LIMIT 1)
  UNION ALL
  SELECT n.* FROM apart a CROSS JOIN LATERAL (
    SELECT d.subscription_id, d.line_id FROM delivery_open d
     WHERE {APART} AND (d.subscription_id, d.line_id) > (a.subscription_id, a.line_id)
     ORDER BY d.subscription_id, d.line_id LIMIT 1) n)"""
"""A recursive CTE of the subscriptions and lines that have something `APART`.

It skips from one line of one subscription to the next along the index, so its cost follows them, not deliveries.
"""


def subscriptions_with(name: LiteralString, condition: LiteralString) -> LiteralString:
    """Return a recursive CTE of the ids of subscriptions with an open delivery that meets `condition`, null at the end.

    It skips from one subscription to the next along that condition's index, so its cost follows subscriptions only.
    """
    return f"""
{name} AS (
  (SELECT subscription_id AS id FROM delivery_open WHERE {condition} ORDER BY subscription_id LIMIT 1)
  UNION ALL
  SELECT (SELECT d.subscription_id FROM delivery_open d
           WHERE {condition} AND d.subscription_id > w.id ORDER BY d.subscription_id LIMIT 1)
    FROM {name} w WHERE w.id IS NOT NULL)"""


FILED_COLUMNS: Final[tuple[LiteralString, ...]] = (
    *("id", "message_id", "line_id", "subscription_id", "group_id", "status", "size", "attempts", "times_deferred"),
    *("waits_for", "due_at", "sequence", "uncertain", "cancel_requested", "reason", "created_at", "expires_at"),
    *("not_before", "resubmit_of", "replay_id", "fetches", "fetch_id", "unreceived", "ordering_key"),
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

HISTORY_LINE: Final = f"""COALESCE((SELECT m.id FROM {LINE.format("line_id")} l
                     CROSS JOIN {MAIN_LINE.format("l.subscriber_id")} m), line_id)"""
"""The line whose history has the events of a row: for a retry line the main line, which gave the numbers."""

_COLUMNS: Final = ", ".join(FILED_COLUMNS)
FILE_GONE: Final = f"""
  INSERT INTO delivery_delivery ({_COLUMNS}, finished_at, closed_on)
  SELECT {_COLUMNS}, clock_timestamp(), (SELECT delivery_filing_day()) FROM gone"""
"""File the rows of a CTE `gone`, deleted from `delivery_open`, under today.

DELETE and INSERT, not an UPDATE that moves the row: a statement that waited for the row finds it gone, not an error.
The function is inlined when a statement is planned: see `partitions.say_where_to_file`.
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


END_GROUPS: Final = """
ended AS (
  DELETE FROM delivery_queuegroup WHERE id = ANY (ARRAY(
    SELECT g.id FROM groups g
     WHERE (SELECT d.id FROM unnest(g.delivery_ids) AS other (id) CROSS JOIN LATERAL (
              SELECT o.id FROM delivery_open o WHERE o.id = other.id AND o.closed_on = '9999-12-31' LIMIT 1) d
             WHERE d.id NOT IN (SELECT id FROM gone) LIMIT 1) IS NULL)))"""
"""A CTE that deletes those of the CTE `groups` of which no delivery is left once those of `gone` are.

HELD and parked groups too, which are not read any more. The rest of a group is looked up by id: `NOT EXISTS` becomes a
join that reads every open delivery while statistics say that there are none.
"""
