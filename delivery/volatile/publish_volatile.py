"""Publish a volatile message through Redis, stored nowhere (contract 2.9)."""

from collections.abc import Callable
from typing import Final, NamedTuple
from uuid import UUID

from broker_project.core.encryption import Keyring
from delivery.dispatch import notify
from delivery.models import MessageOutcome, VolatileOutcome
from delivery.publish.routing import Route, log_unreceived, routes_of
from delivery.publish.store import NewMessage
from delivery.volatile.counters import ACCEPTED, VolatileTally, running_counters
from delivery.volatile.envelope import MAX_SECONDS, Envelope

TASK: Final = "delivery.send_volatile"
MAX_WAITING: Final = 2_000
"""Parcels that wait for a worker at most: of the largest ones so many take some 250 MB of Redis."""


class NotHandedOver(Exception):
    """As much waits for the workers as may, or they cannot be told; perhaps one was, and nobody heard that it was."""


class Pulled(Exception):
    """Somebody would fetch it from a mailbox, where only what is stored can wait (contract 2.9, 9.1)."""


class HandedOver(NamedTuple):
    """What is answered to a volatile publish."""

    outcome: MessageOutcome
    deliveries: int
    """How many subscriptions it is sent to, once each, if nothing comes between."""


def hand_over(message: NewMessage, *, key: UUID, now: float, keys: Keyring) -> HandedOver:
    """Hand a message to the workers for all subscriptions that qualify.

    `key` is to tell it from all others; `now` is the time, in seconds since 1970; `keys` seal it on its way.

    Raises:
        Pulled: some of them are fetched from mailboxes; nobody gets it.
        NotHandedOver: nobody knows of any that takes it; as a rule nothing is sent.

    """
    (route,) = routes_of([message], lock=False)
    if any(match.is_pulled and not match.failure for match in route.matches):
        raise Pulled
    wanting = [match.subscription_id for match in route.matches if not match.failure]
    parcel = Envelope.of(message, wanting, key=key, now=now)
    if parcel.subscription_ids and not is_put(parcel, keys):
        raise NotHandedOver
    _count(parcel, route)
    log_unreceived([parcel.id], [message], [route])
    return HandedOver(route.outcome, len(parcel.subscription_ids))


def _count(parcel: Envelope, route: Route) -> None:
    tallies = running_counters()
    tallies.count(VolatileTally(parcel.hour, parcel.event_type_id, None), ACCEPTED)
    for match in route.matches:
        of = VolatileTally(parcel.hour, parcel.event_type_id, match.subscription_id)
        tallies.count(of, ACCEPTED)
        if match.failure:
            tallies.count(of, VolatileOutcome.FILTERED)


def is_put(parcel: Envelope, keys: Keyring) -> bool:
    """Hand a parcel to the workers, sealed; tell whether that was done: not where Redis is away, or too many wait."""
    waiting = _asked(lambda: notify.redis_client().llen(notify.VOLATILE))
    if waiting is None or waiting >= MAX_WAITING:
        return False
    return notify.hint(TASK, [parcel.id, parcel.sealed(keys)], notify.VOLATILE, shown=f"({parcel.id!r},)")


def is_first(parcel: Envelope) -> bool | None:
    """Tell whether nobody has taken this parcel before, None where Redis does not answer.

    Celery brings a task again whose receipt Redis has not heard of; for longer than that is known nothing is sent.
    """
    key = f"broker:volatile:{parcel.id}"
    found = _asked(lambda: int(bool(notify.redis_client().set(key, 1, nx=True, ex=MAX_SECONDS))))
    return None if found is None else bool(found)


def _asked(question: Callable[[], int]) -> int | None:
    answers: list[int] = []
    notify.guarded(lambda: answers.append(question()))
    return answers[0] if answers else None
