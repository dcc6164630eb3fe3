"""Record a round: one statement for all lines that finished something, under their fencing epochs."""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, Final, LiteralString

import orjson

from broker_project.core.db import Rows, array, rows, with_blocks
from delivery.dispatch.claim import ActiveHold
from delivery.statuses import DeliveryStatus
from delivery.webhook.destination import NEVER_CONFIGURED
from delivery.worker.settle_sql import SETTLE
from delivery.worker.steps import LineUpdate, Mark, Settled, Settlement, Withheld

OURS: Final = """
SELECT l.id FROM delivery_line l
  JOIN unnest(%s::bigint[], %s::bigint[]) AS o (line_id, epoch) ON l.id = o.line_id AND l.epoch = o.epoch
"""
NOT_TAKEN: Final = frozenset({DeliveryStatus.FAILED, DeliveryStatus.REJECTED})
"""How a delivery can end that was not taken: without an answer too, once its retries are used up."""

Statement = tuple[LiteralString, Mapping[str, Any]]
"""With its arguments."""


@cache
def settle_statement(blocks: frozenset[str]) -> LiteralString:
    """Return the statement with these optional blocks."""
    return with_blocks(SETTLE, blocks)


def settling(
    epochs: Mapping[int, int],
    *,
    settlements: Sequence[Settlement] = (),
    marks: Sequence[Mark] = (),
    states: Sequence[LineUpdate] = (),
    withheld: Sequence[Withheld] = (),
    holds: Sequence[ActiveHold] = (),
    spares: bool = False,
) -> Statement:
    """Return what records everything for the lines in `epochs`, but (`spares`) those with a delivery that is locked."""
    effects = [one.side_effects for one in settlements if one.side_effects]
    stays = any(one.status is DeliveryStatus.PENDING for one in settlements)
    needs = {
        "stays": stays,
        "doubts": stays or any(one.status in NOT_TAKEN and one.status_code is None for one in settlements),
        "turns": any(effect.suspends or effect.resumes for effect in effects),
        "announces": any(
            one.status in NOT_TAKEN and one.side_effects and one.side_effects.announces for one in settlements
        ),
        "writes": bool(states),
        "withholds": bool(withheld),
        "holds": bool(holds),
        "keyed": any(mark.is_last_chance for mark in marks),
        "keeps_pace": any(mark.rate_slot for mark in marks),
        "replies": any(mark.config_version == NEVER_CONFIGURED for mark in marks),
        "spares": spares,
    }
    statement = settle_statement(frozenset(name for name, is_needed in needs.items() if is_needed))
    return statement, arguments_of(epochs, settlements, marks, states, withheld=withheld, holds=holds)


def settle(epochs: Mapping[int, int], **parts: Any) -> Settled:
    """Record everything, as for `settling`, in one durable statement; safe to repeat.

    Raises:
        django.db.Error: nothing, or everything, has been recorded.
    """
    return settled_by(epochs, rows(*settling(epochs, **parts)))


def settled_by(epochs: Mapping[int, int], found: Rows) -> Settled:
    """Return what a statement that settles did for these lines, whose one row was `found`."""
    ((owned, ended, started, sequences, *waits),) = found
    locked: frozenset[int] = frozenset()
    if missing := epochs.keys() - owned:
        # Those that are ours all the same: somebody has locked them, or a delivery of theirs.
        ours = rows(OURS, [array(missing), array(epochs[line_id] for line_id in missing)])
        locked = frozenset(line_id for (line_id,) in ours)
    return Settled(
        owned=frozenset(owned),
        locked=locked,
        ended=frozenset(ended),
        started=dict(zip(started, sequences, strict=True)),
        waits=dict(zip(*waits, strict=True)),
    )


def arguments_of(
    epochs: Mapping[int, int],
    settlements: Sequence[Settlement],
    marks: Sequence[Mark],
    states: Sequence[LineUpdate],
    **others: Sequence[Any],
) -> dict[str, Any]:
    """Return the arguments of a statement that settles."""
    arguments = {
        "line_id": array(epochs.keys()),
        "epoch": array(epochs.values()),
        "settlements": _json([one.row() for one in settlements]),
        "marks": _json([one.row() for one in marks]),
    }
    return arguments | {name: _json(values) for name, values in {"states": states, **others}.items() if values}


def _json(values: Sequence[Any]) -> str:
    """Return the values as one parameter: its type never varies, so the statement is prepared once."""
    return orjson.dumps(values, default=bytes.hex).decode()
