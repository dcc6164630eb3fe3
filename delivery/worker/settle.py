"""Record a round: one statement for every line that finished something, under its fencing epoch."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final, LiteralString

import orjson

from broker_project.core.db import rows
from delivery.limits import LEASE_SECONDS
from delivery.statuses import DeliveryStatus
from delivery.worker.settle_sql import (
    ENDS_ANNOUNCED,
    FILED,
    IN_ITS_SLOT,
    MARKED,
    OF_LINES,
    ONLY_GONE,
    OPEN,
    PACED,
    RECORDED,
    RECORDED_WITH_MEANING,
    REPLIES,
    RESULT_OF_PACED,
    RESUMED,
    SLOTS,
    STARTED,
    STAYED,
    SUSPENDED,
    TOLD_OF_GONE,
    UNLESS_SUSPENDED,
    WITHHELD,
)
from delivery.worker.settlements import NEVER_CONFIGURED, LineUpdate, Mark, Settled, Settlement, Withheld

_WITH_ITS_TRIAL: Final = """
           + (SELECT count(*) FROM turned t WHERE t.id = w.head_id AND NOT t.suspends)"""


RESULT: Final = """
SELECT 'owned', id, NULL::bigint FROM owned
UNION ALL SELECT 'ended', id, NULL::bigint FROM ended
UNION ALL SELECT 'started', id, sequence FROM started
"""
RESULT_OF_REPLIES: Final = """
UNION ALL SELECT 'started', id, 0::bigint FROM started_replies
"""

OURS: Final = """
SELECT l.id FROM delivery_line l
  JOIN unnest(%s::bigint[], %s::bigint[]) AS o (line_id, epoch) ON l.id = o.line_id AND l.epoch = o.epoch
"""


MICROSECONDS: Final = 1_000_000
"""In a second."""
IN_VAIN: Final = frozenset({DeliveryStatus.FAILED, DeliveryStatus.REJECTED})
"""How a delivery can end that was not taken: without an answer too, once its retries are used up."""

GIVEN: Final = """
settled AS MATERIALIZED (
  SELECT * FROM json_to_recordset(%(settlements)s::json)
    AS s (line_id bigint, delivery_id bigint, status text, pause float8, uncertain bool, sequence_unused bool,
          reason text, started_at timestamptz, duration_ms int, status_code int, answer_headers text,
          answer_excerpt text, side_effects json)),
next AS MATERIALIZED (
  SELECT * FROM json_to_recordset(%(marks)s::json)
    AS m (line_id bigint, delivery_id bigint, config_version bigint, sequence bigint)),"""

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
         deferred_next = w.deferred_next, worker = CASE WHEN w.let_go THEN '' ELSE l.worker END,
         lease_until = CASE WHEN NOT w.let_go THEN clock_timestamp() + make_interval(secs => %(lease)s) END,
         due_at = clock_timestamp() + make_interval(secs => w.pause),
         held_since = CASE WHEN w.reason <> '' THEN COALESCE(l.held_since, clock_timestamp())
                           WHEN w.head_id = l.head_id THEN l.held_since END,
         held_reason = CASE WHEN w.reason = '' AND w.head_id = l.head_id THEN l.held_reason ELSE w.reason END,
         held_config_version = w.config_version"""


_OF_OWNED: Final = """
    FROM json_to_recordset(%(states)s::json)
           AS w (line_id bigint, let_go bool, last_sequence bigint, head_id bigint, failures int, deferred_next bool,
                 pause float8, reason text, config_version bigint)
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


def settle(
    epochs: Mapping[int, int],
    *,
    settlements: Sequence[Settlement] = (),
    marks: Sequence[Mark] = (),
    states: Sequence[LineUpdate] = (),
    withheld: Sequence[Withheld] = (),
) -> Settled:
    """Record everything for the lines in `epochs`, in one durable statement; safe to repeat.

    Raises:
        django.db.Error: nothing, or everything, has been recorded.

    """
    needs = _needs_of(settlements, marks, states, withheld)
    return settled_by(settle_statement(needs), epochs, arguments_of(epochs, settlements, marks, states, withheld))


def _needs_of(
    settlements: Sequence[Settlement], marks: Sequence[Mark], states: Sequence[LineUpdate], withheld: Sequence[Withheld]
) -> Needs:
    furthers = [one.side_effects for one in settlements if one.side_effects]
    return Needs(
        stays=any(one.status is DeliveryStatus.PENDING for one in settlements),
        writes=bool(states),
        withholds=bool(withheld),
        replies=any(mark.config_version == NEVER_CONFIGURED for mark in marks),
        keeps_pace=any(mark.rate_slot for mark in marks),
        ends_unanswered=any(one.status in IN_VAIN and one.status_code is None for one in settlements),
        means=any(side_effects.meaning for side_effects in furthers),
        turns=any(side_effects.suspends or side_effects.resumes for side_effects in furthers),
        announces=any(one.status in IN_VAIN and one.side_effects and one.side_effects.announces for one in settlements),
    )


def settled_by(statement: LiteralString, epochs: Mapping[int, int], arguments: Mapping[str, Any]) -> Settled:
    """Run a statement that settles; return what it did."""
    by_kind: dict[str, dict[int, int]] = {"owned": {}, "ended": {}, "started": {}, "waits": {}}
    for kind, row_id, sequence in rows(statement, arguments):
        by_kind[kind][row_id] = sequence
    owned = frozenset(by_kind["owned"])
    return Settled(
        owned=owned,
        locked=_still_ours({line_id: epoch for line_id, epoch in epochs.items() if line_id not in owned}),
        ended=frozenset(by_kind["ended"]),
        started=by_kind["started"],
        waits={row_id: microseconds / MICROSECONDS for row_id, microseconds in by_kind["waits"].items()},
    )


def arguments_of(
    epochs: Mapping[int, int],
    settlements: Sequence[Settlement],
    marks: Sequence[Mark],
    states: Sequence[LineUpdate],
    withheld: Sequence[Withheld] = (),
) -> dict[str, Any]:
    """Return what a statement that settles is given."""
    always = {
        "line_id": _array(epochs.keys()),
        "epoch": _array(epochs.values()),
        "settlements": _json(settlements),
        "marks": _json(marks),
    }
    if withheld:
        always["withheld"] = _json(withheld)
    return always | ({"states": _json(states), "lease": LEASE_SECONDS} if states else {})


def _still_ours(missing: Mapping[int, int]) -> frozenset[int]:
    """Return which of the lines that were not settled are ours all the same: somebody has locked them."""
    if not missing:
        return frozenset()
    return frozenset(line_id for (line_id,) in rows(OURS, [[*missing.keys()], [*missing.values()]]))


def _array(numbers: Iterable[int]) -> str:
    """Return the numbers as PostgreSQL writes an array: a tenth of what the event loop takes for a list."""
    return "{" + ",".join(map(str, numbers)) + "}"


def _json(values: Sequence[Any]) -> str:
    """Return the values as one parameter: its type never varies, so the statement is prepared once."""
    return orjson.dumps(values, default=bytes.hex).decode()
