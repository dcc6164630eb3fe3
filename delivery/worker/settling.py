"""Recording what came of QUEUE groups: one statement for every sender that finished something in this round."""

from collections.abc import Mapping, Sequence
from typing import Final

from broker_project.core.db import rows
from delivery.statuses import DeliveryStatus
from delivery.worker.lines import arguments_of, settled_by
from delivery.worker.queue_settle import PUT_BACK, queue_settle_statement
from delivery.worker.settlements import LineState, Mark, Settled, Settlement

PUT_OFF_SECONDS: Final = 60.0
"""How long a group waits of which the database refuses what came of it."""


def settle_groups(
    epochs: Mapping[int, int],
    *,
    settlements: Sequence[Settlement] = (),
    marks: Sequence[Mark] = (),
    states: Sequence[LineState] = (),
) -> Settled:
    """Record everything for the senders' lines in `epochs`, in one durable statement; safe to repeat.

    Raises:
        django.db.Error: nothing, or everything, has been recorded.

    """
    statement = queue_settle_statement(
        stays=any(one.status is not DeliveryStatus.DELIVERED for one in settlements),
        writes=bool(states),
        rejects=any(one.status is DeliveryStatus.REJECTED for one in settlements),
    )
    return settled_by(statement, epochs, arguments_of(epochs, settlements, marks, states))


def put_back(line_id: int, epoch: int, delivery_id: int, *, pause: float | None = None) -> None:
    """Give up what is under way: its outcome counts as unknown, and its group waits for `pause` seconds if any."""
    rows(PUT_BACK, {"line_id": line_id, "epoch": epoch, "delivery_id": delivery_id, "pause": pause})
