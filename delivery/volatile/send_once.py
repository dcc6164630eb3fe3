"""Sending volatile messages in a worker process: all at once, beside its lines, and no task waits (behaviour 2.9)."""

import os
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Final

import structlog
from django.db import Error

from broker_project.core.keyring import CannotBeOpened, Keyring
from broker_project.core.reach import Reach
from delivery.dispatch.claim import DEADLINE_SECONDS
from delivery.http.futures import CallLoop
from delivery.http.transfer import Answer
from delivery.models import VolatileOutcome
from delivery.volatile import counters
from delivery.volatile.counters import Counted, running_tallies
from delivery.volatile.envelope import Parcel
from delivery.volatile.errands import Errand, errand
from delivery.volatile.pacing import out_of_turn
from delivery.volatile.places import Places
from delivery.volatile.queueing import is_first
from delivery.webhook.destination import destinations_of
from subscriptions.scripting.jobs import Result

MOST_ANSWER_BYTES: Final = 64 * 1024
"""What is read of an answer; of which the status alone counts."""
MOST_BODY_BYTES: Final = 16 * 1024 * 1024
"""Bodies under way at once in a process; its lines have the rest of what it holds (behaviour 11.1)."""
DRAIN_SECONDS: Final = 1.0
"""How long a worker that stops waits for answers; what comes later is counted as lost."""

log = structlog.get_logger(__name__)


class Sender:
    """A process's requests for volatile messages: so many under way at most, and none of them twice."""

    def __init__(self, *, reach: Reach, under_way: int) -> None:
        self._places = Places(under_way, most_bytes=MOST_BODY_BYTES)
        self._loop = CallLoop(reach=reach, deadline_seconds=DEADLINE_SECONDS, most_answer_bytes=MOST_ANSWER_BYTES)
        self._loop.start()

    def open_and_send(self, parcel_id: str, sealed: str, keys: Keyring) -> None:
        """Send what a task has; what was sealed under a secret key that this worker does not have is lost."""
        try:
            self.send(Parcel.opened(parcel_id, sealed, keys))
        except CannotBeOpened:
            hint = "BROKER_SECRET_KEY and its fallbacks have to be the same for every process"
            log.error("volatile.cannot_be_opened", id=parcel_id, hint=hint)  # noqa: TRY400 - the reason is known

    def send(self, parcel: Parcel) -> None:
        """Send a parcel to each of its subscriptions, unless somebody has done so; returns before they answer."""
        match is_first(parcel):
            case True:
                self._send_first(parcel)
            case None:
                _lose(parcel, "Redis does not answer")

    def stop(self) -> None:
        """Wait a moment for answers; what has none then is lost."""
        self._places.wait_until_empty(DRAIN_SECONDS)
        self._loop.stop()

    def _send_first(self, parcel: Parcel) -> None:
        ends = {one: partial(self._end, parcel, one) for one in parcel.subscription_ids if self._has_place(parcel, one)}
        try:
            destinations = destinations_of([*ends])
            waiting = set() if parcel.is_over(time.time()) else out_of_turn(destinations.values())
        except Error as failure:
            log.warning("volatile.not_sent", id=parcel.id, reason=failure)
            for end in ends.values():
                end(VolatileOutcome.LOST)
            return
        for subscription_id, end in ends.items():
            if subscription_id in waiting:
                end(VolatileOutcome.DROPPED)
            else:
                self._go_on(errand(parcel, destinations.get(subscription_id), time.time), None, end)

    def _has_place(self, parcel: Parcel, subscription_id: int) -> bool:
        """Take a place, so that only what has one takes the turn of its subscription; without one it is dropped."""
        has_place = self._places.take(subscription_id, len(parcel.body))
        if not has_place:
            _count(parcel, subscription_id, VolatileOutcome.DROPPED)
        return has_place

    def _go_on(self, begun: Errand, came: Answer | Result | None, end: Callable[[VolatileOutcome], None]) -> None:
        """Let an errand take its next step; one that fails is lost, and no other with it."""
        try:
            wanted = begun.send(came)
        except StopIteration as ended:
            end(ended.value)
        except Exception:
            log.exception("volatile.failed")
            end(VolatileOutcome.LOST)
        else:
            self._loop.take(wanted).add_done_callback(lambda future: self._go_on(begun, future.result(), end))

    def _end(self, parcel: Parcel, subscription_id: int, outcome: VolatileOutcome) -> None:
        _count(parcel, subscription_id, outcome)
        self._places.leave(subscription_id, len(parcel.body))


def _lose(parcel: Parcel, reason: str) -> None:
    log.warning("volatile.not_sent", id=parcel.id, reason=reason)
    for subscription_id in parcel.subscription_ids:
        _count(parcel, subscription_id, VolatileOutcome.LOST)


def _count(parcel: Parcel, subscription_id: int, outcome: VolatileOutcome) -> None:
    running_tallies().count(Counted(parcel.hour, parcel.event_type_id, subscription_id), outcome)


_senders: dict[int, Sender] = {}
"""By process: no thread survives a fork."""
_start_lock: Final = threading.Lock()


def running_sender(*, reach: Reach, under_way: int) -> Sender:
    """Return this process's sender; made when first asked for."""
    with _start_lock:
        process = os.getpid()
        return _senders.get(process) or _senders.setdefault(process, Sender(reach=reach, under_way=under_way))


def stop() -> None:
    """Stop this process's sender, if it has one, and write down what it has counted."""
    with _start_lock:
        if stopped := _senders.pop(os.getpid(), None):
            stopped.stop()
    counters.stop()
