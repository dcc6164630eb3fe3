"""Send volatile messages at most once, beside the lines of a worker process (contract 2.9)."""

import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterable
from functools import partial
from typing import Any, Final

import structlog
from django.db import Error
from requests import PreparedRequest

from broker_project.core.db import rows
from broker_project.core.egress import EgressPolicy
from broker_project.core.encryption import DecryptionFailed, Keyring
from delivery.http.futures import CallLoop
from delivery.http.transfer import Answer, RequestNotCompleted
from delivery.limits import REQUEST_DEADLINE_SECONDS
from delivery.models import VolatileOutcome
from delivery.sync.answer import SUCCESSES
from delivery.volatile import counters
from delivery.volatile.counters import VolatileTally, running_counters
from delivery.volatile.envelope import Envelope
from delivery.volatile.publish_volatile import is_first
from delivery.webhook.destination import destinations_of
from delivery.webhook.parts import Destination
from delivery.webhook.request import webhook_request
from delivery.webhook.transform import TransformRefused, job_for, transformed_content
from delivery.worker.settle_sql import AT, LATE
from subscriptions.scripting.jobs import Failed, Job, Lost, Made, NotRun, Result

Errand = Generator[Job | PreparedRequest, Any, VolatileOutcome]
"""Yields what is to be run or sent, is sent what came of it, and returns what became of the message."""

SHARE_OF_ONE: Final = 4
"""The part of all that one subscription may have is one in so many: one that hangs leaves the others theirs."""
ALL: Final = None
"""Whose the places are that anybody has."""

MAX_ANSWER_BYTES: Final = 64 * 1024
"""What is read of an answer; of which the status alone counts."""
MAX_BODY_BYTES: Final = 16 * 1024 * 1024
"""Bodies under way at once in a process; its lines have the rest of what it holds (contract 11.1)."""
DRAIN_SECONDS: Final = 1.0
"""How long a worker that stops waits for answers; what comes later is counted as lost."""

log = structlog.get_logger(__name__)


_start_lock: Final = threading.Lock()

WITHOUT_SCRIPT: Final = {
    Failed: VolatileOutcome.SKIPPED,
    Lost: VolatileOutcome.LOST,
    NotRun: VolatileOutcome.DROPPED,
}
"""What becomes of a message whose script brought nothing to send."""


def send_line(parcel: Envelope, destination: Destination | None, clock: Callable[[], float]) -> Errand:
    """Bring a parcel to a subscription; `destination` is None where nothing is sent to it now.

    One that is suspended and tried again is tried with what is stored, not with this.
    """
    if destination is None or destination.half_open:
        return VolatileOutcome.SKIPPED
    content = parcel.content
    if destination.script:
        result: Result = yield job_for(parcel.number, content, destination)
        if not isinstance(result, Made):
            return WITHOUT_SCRIPT[type(result)]
        try:
            content = transformed_content(content, destination, result)
        except TransformRefused:
            return VolatileOutcome.SKIPPED
    now = clock()
    if parcel.is_over(now):
        return VolatileOutcome.EXPIRED
    numbers = parcel.numbers(destination.subscription_id)
    answer: Answer = yield webhook_request(content, destination, numbers, timestamp=int(now))
    return outcome_of(answer)


def outcome_of(answer: Answer) -> VolatileOutcome:
    """Return what an answer, or that there is none, makes of the message; nothing is tried again."""
    if not isinstance(answer.result, RequestNotCompleted):
        is_success = answer.result.status_code in SUCCESSES
        return VolatileOutcome.DELIVERED if is_success else VolatileOutcome.REFUSED
    if answer.result.is_refused:
        return VolatileOutcome.NOT_ALLOWED
    is_from_network = answer.token is not None
    return VolatileOutcome.NO_ANSWER if is_from_network else VolatileOutcome.LOST


LINES_WAIT: Final = """
         ((SELECT o.id FROM delivery_open o
            WHERE o.subscription_id = p.subscription_id AND o.due_at IS NULL ORDER BY o.id LIMIT 1) IS NOT NULL
          OR EXISTS (
            SELECT FROM subscriptions_subscription s JOIN delivery_line l ON l.subscriber_id = s.subscriber_id
             CROSS JOIN LATERAL (
               SELECT o.id FROM delivery_open o
                WHERE o.subscription_id = s.id AND o.line_id = l.id AND o.due_at <= (SELECT clock_timestamp())
                ORDER BY o.due_at, o.id LIMIT 1) d
             WHERE s.id = p.subscription_id))"""
"""Whether something stored waits to be sent to the subscription of the pace `p`."""

TAKE: Final = f"""
WITH free AS MATERIALIZED (
  SELECT p.subscription_id, {AT}
    FROM (SELECT subscription_id, make_interval(secs => spacing) AS spacing
            FROM unnest(%s::bigint[], %s::float8[]) AS w (subscription_id, spacing)) m
    JOIN delivery_pace p ON p.subscription_id = m.subscription_id
   WHERE p.last_at IS NULL OR p.last_at + m.spacing + {LATE} <= clock_timestamp()
      OR p.last_at + m.spacing <= clock_timestamp() AND NOT {LINES_WAIT}
   ORDER BY p.subscription_id FOR NO KEY UPDATE OF p SKIP LOCKED)
UPDATE delivery_pace p SET last_at = f.at
  FROM free f WHERE p.subscription_id = f.subscription_id RETURNING p.subscription_id
"""
"""The pace is the lines' as well: whoever has it locked is sending something.

A line that waits for its slot comes a moment after it. What is stored is not to wait for what may be lost, however much
there is of that: a slot is the lines' for as long as it can be taken, where they have something to send.
"""


def out_of_turn(destinations: Iterable[Destination]) -> set[int]:
    """Return those that may not be sent now, by subscription; the others have taken their turn, where there is one.

    One on trial is not sent this, and takes none: it would be its trial's.
    """
    spacings = {
        one.subscription_id: one.spacing for one in destinations if one.spacing is not None and not one.half_open
    }
    if not spacings:
        return set()
    return spacings.keys() - {taken for (taken,) in rows(TAKE, [[*spacings], [*spacings.values()]])}


class FairSlots:
    """So many places, and bytes of bodies in them, taken and left by any thread."""

    def __init__(self, most: int, *, max_bytes: int) -> None:
        self._most, self._most_for_one = most, max(1, most // SHARE_OF_ONE)
        self._most_bytes, self._most_bytes_for_one = max_bytes, max_bytes // SHARE_OF_ONE
        self._taken: Counter[int | None] = Counter()
        self._bytes: Counter[int | None] = Counter()
        self._changed = threading.Condition()

    def take(self, subscription_id: int, size: int) -> bool:
        """Take a place for a body of `size` bytes; tell whether there was one."""
        with self._changed:
            if self._taken[ALL] >= self._most or self._bytes[ALL] + size > self._most_bytes:
                return False
            if self._taken[subscription_id] >= self._most_for_one:
                return False
            if self._bytes[subscription_id] + size > self._most_bytes_for_one:
                return False
            for whose in (ALL, subscription_id):
                self._taken[whose] += 1
                self._bytes[whose] += size
            return True

    def leave(self, subscription_id: int, size: int) -> None:
        """Leave a place that was taken, with as many bytes."""
        with self._changed:
            for whose in (ALL, subscription_id):
                self._taken[whose] -= 1
                self._bytes[whose] -= size
            if not self._taken[subscription_id]:
                del self._taken[subscription_id], self._bytes[subscription_id]
            self._changed.notify_all()

    def wait_until_empty(self, seconds: float) -> bool:
        """Wait until all are left, for so long at most; tell whether they are."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._taken[ALL], seconds)


class Sender:
    """A process's requests for volatile messages: so many under way at most, and none of them twice."""

    def __init__(self, *, egress: EgressPolicy, under_way: int) -> None:
        self._places = FairSlots(under_way, max_bytes=MAX_BODY_BYTES)
        self._loop = CallLoop(
            egress=egress, deadline_seconds=REQUEST_DEADLINE_SECONDS, max_answer_bytes=MAX_ANSWER_BYTES
        )
        self._loop.start()

    def open_and_send(self, parcel_id: str, sealed: str, keys: Keyring) -> None:
        """Send what a task has; what was sealed under a secret key that this worker does not have is lost."""
        try:
            self.send(Envelope.opened(parcel_id, sealed, keys))
        except DecryptionFailed:
            hint = "BROKER_SECRET_KEY and its fallbacks have to be the same for every process"
            log.error("volatile.cannot_be_opened", id=parcel_id, hint=hint)  # noqa: TRY400 - the reason is known

    def send(self, parcel: Envelope) -> None:
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

    def _send_first(self, parcel: Envelope) -> None:
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
                self._go_on(send_line(parcel, destinations.get(subscription_id), time.time), None, end)

    def _has_place(self, parcel: Envelope, subscription_id: int) -> bool:
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

    def _end(self, parcel: Envelope, subscription_id: int, outcome: VolatileOutcome) -> None:
        _count(parcel, subscription_id, outcome)
        self._places.leave(subscription_id, len(parcel.body))


def _lose(parcel: Envelope, reason: str) -> None:
    log.warning("volatile.not_sent", id=parcel.id, reason=reason)
    for subscription_id in parcel.subscription_ids:
        _count(parcel, subscription_id, VolatileOutcome.LOST)


def _count(parcel: Envelope, subscription_id: int, outcome: VolatileOutcome) -> None:
    running_counters().count(VolatileTally(parcel.hour, parcel.event_type_id, subscription_id), outcome)


_senders: dict[int, Sender] = {}
"""By process: no thread survives a fork."""


def running_sender(*, egress: EgressPolicy, under_way: int) -> Sender:
    """Return this process's sender; made when first asked for."""
    with _start_lock:
        process = os.getpid()
        return _senders.get(process) or _senders.setdefault(process, Sender(egress=egress, under_way=under_way))


def stop() -> None:
    """Stop this process's sender, if it has one, and write down what it has counted."""
    with _start_lock:
        if stopped := _senders.pop(os.getpid(), None):
            stopped.stop()
    counters.stop()
