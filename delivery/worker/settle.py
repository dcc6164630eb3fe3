"""The statement that records a round: its parts, and which of them a round needs.

One statement, since two would not be atomic and cost twice. What a round has no use for is left out: the server sets
every part up anew each time it runs, which for a single line costs more than the work itself.
"""

from dataclasses import dataclass
from functools import cache
from typing import Final, LiteralString

from delivery.worker.announcement_statements import ENDS_ANNOUNCED, OF_LINES
from delivery.worker.mark_statements import MARKED, REPLIES, STARTED
from delivery.worker.pace_statements import IN_ITS_SLOT, PACED, RESULT_OF_PACED, SLOTS
from delivery.worker.settle_sql import (
    FILED,
    ONLY_GONE,
    OPEN,
    RECORDED,
    RECORDED_WITH_MEANING,
    STAYED,
    TOLD_OF_GONE,
    WITHHELD,
)
from delivery.worker.suspension_statements import RESUMED, SUSPENDED, UNLESS_SUSPENDED

GIVEN: Final = """
settled AS MATERIALIZED (
  SELECT * FROM json_to_recordset(%(settlements)s::json)
    AS s (line_id bigint, delivery_id bigint, status text, pause float8, uncertain bool, unsent bool, reason text,
          started_at timestamptz, duration_ms int, status_code int, answer_headers text, answer_excerpt text,
          further json)),
next AS MATERIALIZED (
  SELECT * FROM json_to_recordset(%(marks)s::json)
    AS m (line_id bigint, delivery_id bigint, stamp bigint, sequence bigint)),"""

OWNED: Final = """
owned AS MATERIALIZED (
  SELECT l.id FROM delivery_line l
    JOIN unnest(%(line_id)s::bigint[], %(epoch)s::bigint[]) AS o (line_id, epoch)
      ON l.id = o.line_id AND l.epoch = o.epoch
     FOR NO KEY UPDATE OF l SKIP LOCKED)"""
"""The lines that are still ours, locked: not rewritten, since a row that each settle rewrites degrades first.

In any order: nobody waits here.
"""

_WRITTEN: Final = f"""
missed AS (
  SELECT s.line_id FROM settled s JOIN delivery_open d ON d.id = s.delivery_id AND {OPEN} AND d.line_id = s.line_id
   WHERE d.status = 'IN_FLIGHT' AND d.fetched_until IS NULL AND s.delivery_id NOT IN (SELECT id FROM ended)),
written AS (
  UPDATE delivery_line l
     SET last_sequence = GREATEST(l.last_sequence, w.last_sequence), head_id = w.head_id, failures = w.failures,
         aside_next = w.aside_next, worker = CASE WHEN w.let_go THEN '' ELSE l.worker END,
         lease_until = CASE WHEN NOT w.let_go THEN clock_timestamp() + make_interval(secs => %(lease)s) END,
         due_at = clock_timestamp() + make_interval(secs => w.pause),
         held_since = CASE WHEN w.reason <> '' THEN COALESCE(l.held_since, clock_timestamp())
                           WHEN w.head_id = l.head_id THEN l.held_since END,
         held_reason = CASE WHEN w.reason = '' AND w.head_id = l.head_id THEN l.held_reason ELSE w.reason END,
         held_stamp = w.stamp"""
_WITH_ITS_TRIAL: Final = """
           + (SELECT count(*) FROM turned t WHERE t.id = w.head_id AND NOT t.suspends)"""
_OF_OWNED: Final = """
    FROM json_to_recordset(%(states)s::json)
           AS w (line_id bigint, let_go bool, last_sequence bigint, head_id bigint, failures int, aside_next bool,
                 pause float8, reason text, stamp bigint)
   -- arrays, looked up by hash: joined, they would be a nested loop of lines and lines
   WHERE l.id = w.line_id AND w.line_id = ANY (ARRAY(SELECT id FROM owned))
     AND NOT (w.let_go AND w.line_id = ANY (ARRAY(SELECT line_id FROM missed))))"""
WRITTEN: Final = _WRITTEN + _OF_OWNED
"""Lines let go or renewed; not let go with a delivery under way that this statement missed: nobody would settle it.

What a mailbox has handed out since is its client's, and keeps no line.

One that waits for nothing but its rate is not held by that; if the same delivery held it already, it still is.
"""
WRITTEN_WITH_TRIALS: Final = _WRITTEN + _WITH_ITS_TRIAL + _OF_OWNED
"""The same where a subscription may go on after its trial: that is a change, for which no line that it holds is due."""

RESULT: Final = """
SELECT 'owned', id, NULL::bigint FROM owned
UNION ALL SELECT 'ended', id, NULL::bigint FROM ended
UNION ALL SELECT 'started', id, sequence FROM started
"""
RESULT_OF_REPLIES: Final = """
UNION ALL SELECT 'started', id, 0::bigint FROM started_replies
"""


@dataclass(frozen=True, slots=True)
class Needs:
    """What a round has use for beyond filing what has ended, and marking what is sent next."""

    stays: bool = False
    """Something stays pending."""
    writes: bool = False
    """Lines are let go or renewed."""
    withholds: bool = False
    """Scripts have brought nothing to send."""
    replies: bool = False
    """Replies to callbacks are sent next."""
    keeps_pace: bool = False
    """What is sent next has a rate to keep to."""
    ends_unanswered: bool = False
    """Something ends that has had no answer."""
    means: bool = False
    """An answer came to something else than it would by default."""
    turns: bool = False
    """A subscription is suspended, or goes on after a trial."""
    announces: bool = False
    """What has ended may be announced."""


@cache
def settle_statement(needs: Needs) -> LiteralString:
    """Return the statement for a round with these needs."""
    result = RESULT
    parts = [GIVEN + OWNED, FILED, STAYED if needs.stays else ONLY_GONE]
    parts += [RECORDED_WITH_MEANING if needs.means else RECORDED]
    parts += [SUSPENDED if needs.stays else RESUMED] if needs.turns else []
    parts += [ENDS_ANNOUNCED + OF_LINES] if needs.announces else []
    slots, in_its_slot = (SLOTS, IN_ITS_SLOT) if needs.keeps_pace else ("", "")
    parts += [slots + STARTED + (UNLESS_SUSPENDED if needs.turns else "") + in_its_slot + MARKED]
    parts += [TOLD_OF_GONE] if needs.stays or needs.ends_unanswered else []
    parts += [WRITTEN_WITH_TRIALS if needs.turns else WRITTEN] if needs.writes else []
    parts += [WITHHELD] if needs.withholds else []
    if needs.keeps_pace:
        parts, result = [*parts, PACED], result + RESULT_OF_PACED
    if needs.replies:
        parts, result = [*parts, REPLIES], result + RESULT_OF_REPLIES
    return "WITH" + ",".join(parts) + result
