"""Send volatile messages at most once, outside the lines of a worker process (contract 2.9)."""

import os
import threading
from collections.abc import Callable, Generator, Iterable
from functools import partial
from typing import Any, Final

import orjson
import structlog
from django.db import Error

from broker_project.core.database_clock import DATABASE_CLOCK
from broker_project.core.db import rows
from broker_project.core.egress import EgressPolicy
from broker_project.core.encryption import DecryptionFailed, Keyring
from broker_project.core.fair_share import FairShare
from delivery.dispatch.turn_floors import WAITS
from delivery.http.futures import CallLoop
from delivery.http.transfer import Answer, EncodedRequest
from delivery.limits import REQUEST_DEADLINE_SECONDS
from delivery.models import VolatileOutcome
from delivery.sync.answer import SUCCESSES
from delivery.volatile import counters
from delivery.volatile.publish_volatile import ID_PREFIX, Envelope, is_first
from delivery.webhook.content import content_of
from delivery.webhook.destination import Destination, destinations_of
from delivery.webhook.request import RequestIdentity, webhook_request
from delivery.webhook.transform import TransformRefused, job_for, transformed_content
from delivery.worker.settle_sql import AT, LAST_AT, LATE
from subscriptions.scripting.jobs import Failed, Job, Lost, Made, NotRun, Result

Steps = Generator[Job | EncodedRequest, Any, VolatileOutcome]
"""Yields a script or a request, is sent its result, and returns the outcome."""

SHARES: Final = 4
"""One subscription can use a quarter of the requests and bytes, so that a hanging endpoint leaves room for others."""
MAX_ANSWER_BYTES: Final = 64 * 1024
"""What is read of an answer; only its status counts."""
MAX_BODY_BYTES: Final = 16 * 1024 * 1024
"""Bodies in flight in a process; its lines have the rest of its memory (contract 11.1)."""
DRAIN_SECONDS: Final = 1.0
"""How long a worker that stops waits for answers; later ones are counted as lost."""

WITHOUT_SCRIPT: Final = {
    Failed: VolatileOutcome.SKIPPED,
    Lost: VolatileOutcome.LOST,
    NotRun: VolatileOutcome.DROPPED,
}
"""The outcome where a script made nothing to send."""

LINES_WAIT: Final = f"""
         ((SELECT d.id FROM delivery_open d
            WHERE {WAITS.format("p.subscription_id")} ORDER BY d.subscription_id, d.id LIMIT 1) IS NOT NULL
          OR EXISTS (
            SELECT FROM subscriptions_subscription s JOIN delivery_line l ON l.subscriber_id = s.subscriber_id
             CROSS JOIN LATERAL (
               SELECT o.id FROM delivery_open o
                WHERE o.subscription_id = s.id AND o.line_id = l.id AND o.due_at <= (SELECT clock_timestamp())
                ORDER BY o.due_at, o.id LIMIT 1) d
             WHERE s.id = p.subscription_id))"""
"""Whether something stored can be sent to the subscription of the pace `p`."""

TAKE: Final = f"""
WITH free AS MATERIALIZED (
  SELECT p.subscription_id, {AT}
    FROM (SELECT subscription_id, make_interval(secs => spacing) AS spacing
            FROM unnest(%s::bigint[], %s::float8[]) AS w (subscription_id, spacing)) m
    JOIN delivery_pace p ON p.subscription_id = m.subscription_id
   WHERE COALESCE({LAST_AT} + m.spacing + {LATE} <= clock_timestamp(), true)
      OR {LAST_AT} + m.spacing <= clock_timestamp() AND NOT {LINES_WAIT}
   ORDER BY p.subscription_id FOR NO KEY UPDATE OF p SKIP LOCKED)
UPDATE delivery_pace p SET last_at = f.at
  FROM free f WHERE p.subscription_id = f.subscription_id RETURNING p.subscription_id
"""
"""Take the rate limit's next time for each subscription where it is free. A locked pace is being used by a line.

A line that waits for this time arrives a moment after it. Stored deliveries go first, however many volatile messages
there are: where some wait, the time is theirs as long as a line can still take it.
"""

log = structlog.get_logger(__name__)


def send_to(envelope: Envelope, destination: Destination | None, clock: Callable[[], float]) -> Steps:
    """Send a message to one subscription; `destination` None: it is not sending now.

    A half-open subscription is probed with a stored delivery, not with this.
    """
    if destination is None or destination.half_open:
        return VolatileOutcome.SKIPPED
    content = content_of(
        message_id=0,
        event_type=envelope.event_type,
        body=envelope.body,
        content_type=envelope.content_type,
        headers=orjson.dumps(envelope.headers).decode(),
        published_ms=envelope.published_ms,
        known_as=envelope.id,
    )
    if destination.script:
        seed = int(envelope.id.removeprefix(ID_PREFIX), 16)
        result: Result = yield job_for(seed, content, destination)
        if not isinstance(result, Made):
            return WITHOUT_SCRIPT[type(result)]
        try:
            content = transformed_content(content, destination, result)
        except TransformRefused:
            return VolatileOutcome.SKIPPED
    now = clock()
    if envelope.is_expired(now):
        return VolatileOutcome.EXPIRED
    identity = RequestIdentity(f"{envelope.id}_{destination.subscription_id}")
    answer: Answer = yield webhook_request(content, destination, identity, timestamp=int(now))
    return _outcome(answer)


def _outcome(answer: Answer) -> VolatileOutcome:
    if answer.failure is None:
        return VolatileOutcome.DELIVERED if answer.status in SUCCESSES else VolatileOutcome.REFUSED
    if answer.failure.is_refused:
        return VolatileOutcome.NOT_ALLOWED
    has_ended = answer.token is not None  # else the worker stopped waiting
    return VolatileOutcome.NO_ANSWER if has_ended else VolatileOutcome.LOST


def rate_limited(destinations: Iterable[Destination]) -> set[int]:
    """Return the subscriptions whose rate limit forbids a request now; for the others, this request is counted.

    A half-open subscription is not sent this message, so nothing is counted for it.
    """
    spacings = {
        one.subscription_id: one.spacing for one in destinations if one.spacing is not None and not one.half_open
    }
    if not spacings:
        return set()
    return spacings.keys() - {taken for (taken,) in rows(TAKE, [[*spacings], [*spacings.values()]])}


class VolatileSender:
    """A process's volatile requests."""

    def __init__(self, *, egress: EgressPolicy, max_in_flight: int) -> None:
        self._requests = FairShare(max_in_flight, max(1, max_in_flight // SHARES))
        self._bytes = FairShare(MAX_BODY_BYTES, MAX_BODY_BYTES // SHARES)
        self._loop = CallLoop(
            egress=egress, deadline_seconds=REQUEST_DEADLINE_SECONDS, max_answer_bytes=MAX_ANSWER_BYTES
        )
        self._loop.start()

    def open_and_send(self, envelope_id: str, encrypted: str, keys: Keyring) -> None:
        """Send what a task carries to each of its subscriptions, unless it was sent before; do not wait for answers."""
        try:
            envelope = Envelope.decrypted(envelope_id, encrypted, keys)
        except DecryptionFailed:
            hint = "BROKER_SECRET_KEY and its fallbacks have to be the same for every process"
            log.error("volatile.cannot_be_decrypted", id=envelope_id, hint=hint)  # noqa: TRY400 - the reason is known
            return
        match is_first(envelope):
            case True:
                self._send(envelope)
            case None:
                log.warning("volatile.not_sent", id=envelope.id, reason="Redis does not answer")
                for subscription_id in envelope.subscription_ids:
                    envelope.count(VolatileOutcome.LOST, subscription_id)

    def stop(self) -> None:
        """Wait a moment for answers; requests without one are lost then."""
        self._requests.wait_until_unused(DRAIN_SECONDS)
        self._loop.stop()

    def _send(self, envelope: Envelope) -> None:
        admitted = {
            subscription_id: partial(self._end, envelope, subscription_id)
            for subscription_id in envelope.subscription_ids
            if self._admit(envelope, subscription_id)  # first: what is dropped does not count towards the rate limit
        }
        try:
            DATABASE_CLOCK.refresh()
            destinations = destinations_of(dict.fromkeys(admitted))
            limited = set() if envelope.is_expired(DATABASE_CLOCK.time()) else rate_limited(destinations.values())
        except Error as failure:
            log.warning("volatile.not_sent", id=envelope.id, reason=failure)
            for end in admitted.values():
                end(VolatileOutcome.LOST)
            return
        for subscription_id, end in admitted.items():
            if subscription_id in limited:
                end(VolatileOutcome.DROPPED)
            else:
                self._advance(send_to(envelope, destinations.get(subscription_id), DATABASE_CLOCK.time), None, end)

    def _admit(self, envelope: Envelope, subscription_id: int) -> bool:
        """Take a request and its bytes; without room the message is dropped."""
        if self._requests.take(subscription_id):
            if self._bytes.take(subscription_id, len(envelope.body)):
                return True
            self._requests.give_back(subscription_id)
        envelope.count(VolatileOutcome.DROPPED, subscription_id)
        return False

    def _advance(self, steps: Steps, result: Answer | Result | None, end: Callable[[VolatileOutcome], None]) -> None:
        """Let one message take its next step; a fault loses this one and no other."""
        try:
            wanted = steps.send(result)
        except StopIteration as ended:
            end(ended.value)
        except Exception:
            log.exception("volatile.failed")
            end(VolatileOutcome.LOST)
        else:
            self._loop.take(wanted).add_done_callback(lambda future: self._advance(steps, future.result(), end))

    def _end(self, envelope: Envelope, subscription_id: int, outcome: VolatileOutcome) -> None:
        envelope.count(outcome, subscription_id)
        self._bytes.give_back(subscription_id, len(envelope.body))
        self._requests.give_back(subscription_id)


_senders: dict[int, VolatileSender] = {}
"""By process: threads do not survive a fork."""
_start_lock: Final = threading.Lock()


def get_sender(*, egress: EgressPolicy, max_in_flight: int) -> VolatileSender:
    """Return this process's sender; started when first asked for."""
    with _start_lock:
        process = os.getpid()
        return _senders.get(process) or _senders.setdefault(
            process, VolatileSender(egress=egress, max_in_flight=max_in_flight)
        )


def stop() -> None:
    """Stop this process's sender, if it has one, and write what it has counted."""
    with _start_lock:
        if stopped := _senders.pop(os.getpid(), None):
            stopped.stop()
    counters.stop()
