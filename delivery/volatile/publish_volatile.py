"""Publishing a volatile message: matched like any other, handed to the workers, stored nowhere (behaviour 2.9)."""

from typing import NamedTuple
from uuid import UUID

from broker_project.core.keyring import Keyring
from delivery.models import MessageOutcome, VolatileOutcome
from delivery.publish.routing_ import Route, log_astray, routes_of
from delivery.publish.store import NewMessage
from delivery.volatile.counters import ACCEPTED, Counted, running_tallies
from delivery.volatile.envelope import Parcel
from delivery.volatile.queueing import is_put


class NotHandedOver(Exception):
    """As much waits for the workers as may, or they cannot be told; perhaps one was, and nobody heard that it was."""


class Pulled(Exception):
    """Somebody would fetch it from a mailbox, where only what is stored can wait (behaviour 2.9, 9.1)."""


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
    parcel = Parcel.of(message, wanting, key=key, now=now)
    if parcel.subscription_ids and not is_put(parcel, keys):
        raise NotHandedOver
    _count(parcel, route)
    log_astray([parcel.id], [message], [route])
    return HandedOver(route.outcome, len(parcel.subscription_ids))


def _count(parcel: Parcel, route: Route) -> None:
    tallies = running_tallies()
    tallies.count(Counted(parcel.hour, parcel.event_type_id, None), ACCEPTED)
    for match in route.matches:
        of = Counted(parcel.hour, parcel.event_type_id, match.subscription_id)
        tallies.count(of, ACCEPTED)
        if match.failure:
            tallies.count(of, VolatileOutcome.FILTERED)
