"""Recording outcomes durably: one statement for every line that finished in this round, under its epoch.

Lock the lines, file what ended, put back what stays, record the attempts, mark what is sent next, and write the lines
that are let go or renewed. A line that somebody else has locked is left out and settled later: one that is being
cancelled holds nobody up.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, LiteralString

import orjson

from broker_project.core.db import rows
from delivery.dispatch.claim import LEASE_SECONDS
from delivery.statuses import DeliveryStatus
from delivery.worker.settle import Needs, settle_statement
from delivery.worker.settlements import NEVER_CONFIGURED, LineState, Mark, Settled, Settlement, Withheld

OURS: Final = """
SELECT l.id FROM delivery_line l
  JOIN unnest(%s::bigint[], %s::bigint[]) AS o (line_id, epoch) ON l.id = o.line_id AND l.epoch = o.epoch
"""


MICROSECONDS: Final = 1_000_000
"""In a second."""
IN_VAIN: Final = frozenset({DeliveryStatus.FAILED, DeliveryStatus.REJECTED})
"""How a delivery can end that was not taken: without an answer too, once its retries are used up."""


def settle(
    epochs: Mapping[int, int],
    *,
    settlements: Sequence[Settlement] = (),
    marks: Sequence[Mark] = (),
    states: Sequence[LineState] = (),
    withheld: Sequence[Withheld] = (),
) -> Settled:
    """Record everything for the lines in `epochs`, in one durable statement; safe to repeat.

    Raises:
        django.db.Error: nothing, or everything, has been recorded.

    """
    needs = _needs_of(settlements, marks, states, withheld)
    return settled_by(settle_statement(needs), epochs, arguments_of(epochs, settlements, marks, states, withheld))


def _needs_of(
    settlements: Sequence[Settlement], marks: Sequence[Mark], states: Sequence[LineState], withheld: Sequence[Withheld]
) -> Needs:
    furthers = [one.further for one in settlements if one.further]
    return Needs(
        stays=any(one.status is DeliveryStatus.PENDING for one in settlements),
        writes=bool(states),
        withholds=bool(withheld),
        replies=any(mark.stamp == NEVER_CONFIGURED for mark in marks),
        keeps_pace=any(mark.slot for mark in marks),
        ends_unanswered=any(one.status in IN_VAIN and one.status_code is None for one in settlements),
        means=any(further.meaning for further in furthers),
        turns=any(further.suspends or further.resumes for further in furthers),
        announces=any(one.status in IN_VAIN and one.further and one.further.announces for one in settlements),
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
    states: Sequence[LineState],
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
    """Return the numbers as PostgreSQL writes an array: a tenth of what the driver takes for a list."""
    return "{" + ",".join(map(str, numbers)) + "}"


def _json(values: Sequence[Any]) -> str:
    """Return the values as one parameter: its type never varies, so the statement is prepared once."""
    return orjson.dumps(values, default=bytes.hex).decode()
