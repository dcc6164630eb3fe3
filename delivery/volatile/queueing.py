"""The way of parcels through Redis: each is a Celery task of its own, and taken from there once (behaviour 2.9)."""

from collections.abc import Callable
from typing import Final

from broker_project.core.keyring import Keyring
from delivery.dispatch import notify
from delivery.volatile.envelope import MOST_SECONDS, Parcel

TASK: Final = "delivery.send_volatile"
MOST_WAITING: Final = 2_000
"""Parcels that wait for a worker at most: of the largest ones so many take some 250 MB of Redis."""


def is_put(parcel: Parcel, keys: Keyring) -> bool:
    """Hand a parcel to the workers, sealed; tell whether that was done: not where Redis is away, or too many wait."""
    waiting = _asked(lambda: notify.redis_client().llen(notify.VOLATILE))
    if waiting is None or waiting >= MOST_WAITING:
        return False
    return notify.hint(TASK, [parcel.id, parcel.sealed(keys)], notify.VOLATILE, shown=f"({parcel.id!r},)")


def is_first(parcel: Parcel) -> bool | None:
    """Tell whether nobody has taken this parcel before, None where Redis does not answer.

    Celery brings a task again whose receipt Redis has not heard of; for longer than that is known nothing is sent.
    """
    key = f"broker:volatile:{parcel.id}"
    found = _asked(lambda: int(bool(notify.redis_client().set(key, 1, nx=True, ex=MOST_SECONDS))))
    return None if found is None else bool(found)


def _asked(question: Callable[[], int]) -> int | None:
    answers: list[int] = []
    notify.guarded(lambda: answers.append(question()))
    return answers[0] if answers else None
