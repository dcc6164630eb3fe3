"""A broker in the test's own process: event loop and PostgreSQL are real, a thread takes turns instead of Celery."""

import contextlib
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

from django.conf import settings
from django.db import Error, connection
from django.db.models import QuerySet
from django.db.models.functions import Now

from broker_project.core.db import forget_connection, rows
from broker_project.stack.load.wait import PATIENCE_SECONDS, wait_until
from delivery import endpoint_probe
from delivery.callbacks.address import callback_terms
from delivery.dispatch.claim import Claim, claim
from delivery.dispatch.sweep import due_lines
from delivery.dispatch.turn_floors import note_floors
from delivery.endpoint_probe import Monitors
from delivery.limits import MAX_PROCESS_BYTES
from delivery.maintenance.periodic import PeriodicJobs
from delivery.models import Attempt, Delivery, Hold, Lane, Line, QueueGroup, TurnFloor
from delivery.publish.publish import PublishTerms, publish
from delivery.publish.store import Accepted
from delivery.statuses import DeliveryStatus
from delivery.webhook.request import Outgoing
from delivery.worker import process
from delivery.worker.buffer import BodyBudget, Buffer, PageRequest
from delivery.worker.event_loop import EventLoop
from delivery.worker.leases import active_line
from delivery.worker.line import ActiveLine
from delivery.worker.pages import DatabaseBackoff, PageReading
from delivery.worker.queue import OutgoingGroup, read_groups
from delivery.worker.round_trip import RoundTrip, Settling, mark_of
from delivery.worker.rounds import NO_LINK
from delivery.worker.slots import Settlement, Slots
from subscriptions.models import EventType, Status, Subscriber, Subscription
from tests.support import factories
from tests.support.database import another_connection

ARE_OVER = """
SELECT COALESCE(max(noted_xid), 0) <= pg_snapshot_xmin(pg_current_snapshot())::text::bigint FROM delivery_turnfloor
"""
"""Whether all transactions are over that were open at the last note of a floor."""
MAX_IN_FLIGHT = 16
"""Messages that each QUEUE sender has in flight at a time."""
QUEUE_SENDERS = 5
"""Lines among which QUEUE messages are divided."""


def lines_with_due_work(idle: Collection[int] = ()) -> list[int]:
    """Return the ids of the lines that a sweep finds, in order."""
    return sorted(line.id for line in due_lines(idle))


class Worker(threading.Thread):
    """A worker without Celery: an event loop, periodic jobs, and a thread that runs the lines that the sweep finds."""

    def __init__(self, name: str = "worker", find: Callable[[], list[int]] | None = None, **options: Any) -> None:
        super().__init__(name=name, daemon=True)
        self._find = find or self._due
        self.event_loop = EventLoop(
            worker=name,
            on_failure=lambda: self.failures.append("event_loop"),
            **{
                "queue_max_in_flight": MAX_IN_FLIGHT,
                "terms": callback_terms(),
                "egress": settings.EGRESS_POLICY,
                **options,
            },
        )
        self.failures: list[str] = []
        self._stopping = threading.Event()
        egress = options.get("egress", settings.EGRESS_POLICY)
        self._attendant = PeriodicJobs(self._stopping, egress, on_failure=self.failures.append)

    def run(self) -> None:
        self.event_loop.start()
        self._attendant.start()
        try:
            while not self._stopping.wait(0.01):
                self._take_turn()
        finally:
            forget_connection()

    def _due(self) -> list[int]:
        return lines_with_due_work([line.id for line in self.event_loop.lines.all() if line.is_idle])

    def _take_turn(self) -> None:
        try:
            for line_id, queue in Line.objects.filter(pk__in=self._find()).values_list("pk", "queue"):
                process.take_turn(queue, [line_id], self.event_loop, NO_LINK)
        except Error:
            forget_connection()

    def stop(self) -> None:
        self._stopping.set()
        self.join(PATIENCE_SECONDS)
        self._attendant.join(PATIENCE_SECONDS)
        assert self.event_loop.stop(PATIENCE_SECONDS), "the event loop did not stop"
        assert not self.failures


@contextlib.contextmanager
def running_worker(name: str = "worker", **options: Any) -> Iterator[Worker]:
    """Run a worker; stop it and its threads at the end."""
    worker = Worker(name, **options)
    worker.start()
    try:
        yield worker
    finally:
        worker.stop()


def lone_worker(name: str, *, keep_days: int = 14) -> process.Worker:
    """Return a worker process's own thread, which finds work without Celery."""
    return process.Worker(
        name,
        queues=settings.QUEUES,
        keep_days=keep_days,
        queue_max_in_flight=MAX_IN_FLIGHT,
        terms=callback_terms(),
        egress=settings.EGRESS_POLICY,
    )


MONITORS = Monitors(settings.EGRESS_POLICY)


def probe() -> int:
    """Probe as an attendant does, with the one memory that tests have for it."""
    return endpoint_probe.resume_answered(MONITORS) + endpoint_probe.probe(MONITORS)


def publish_bodies(event_type: EventType | None, *bodies: bytes, **fields: Any) -> list[Accepted]:
    """Publish the bodies in one transaction, in order."""
    assert event_type, "a subscription to a pattern has no event type: name one"
    messages = [factories.message(event_type, body, **fields) for body in bodies]
    return publish(messages, PublishTerms(24, QUEUE_SENDERS, 100_000, callback_terms()))


def raise_floors() -> None:
    """Note several times where searches may begin, as while dead rows pile up for minutes.

    Each note waits for transactions, also those that other tests have open in other databases.
    """
    for _ in range(4):
        wait_until(lambda: rows(ARE_OVER) == [(True,)])
        note_floors_now()


def note_floors_now() -> None:
    """Note where searches may begin, as if time had passed."""
    TurnFloor.objects.update(noted_at=Now() - timedelta(hours=1))
    note_floors(many_dead=-1)


def publish_numbered(event_type: EventType | None, count: int, first: int = 0) -> list[bytes]:
    """Publish `count` messages, whose bodies are their numbers; return the bodies."""
    bodies = [b"%d" % number for number in range(first, first + count)]
    publish_bodies(event_type, *bodies)
    return bodies


def line_of(subscriber: Subscriber) -> Line:
    return Line.objects.get(subscriber=subscriber, lane=Lane.MAIN)


def retry_line_of(subscriber: Subscriber) -> Line:
    return Line.objects.get(subscriber=subscriber, lane=Lane.RETRY)


def unfinished() -> int:
    return Delivery.objects.open().count()


def statuses(subscription: Subscription) -> list[str]:
    """Return the statuses of a subscription's deliveries, oldest first."""
    return [*Delivery.objects.filter(subscription=subscription).oldest_first().values_list("status", flat=True)]


def attempts_of(delivery_id: int) -> list[tuple[int, int | None]]:
    """Return number and status code of each attempt, in order."""
    return [*Attempt.objects.filter(delivery_id=delivery_id).order_by("id").values_list("number", "status_code")]


def wait_until_done(seconds: float = PATIENCE_SECONDS) -> None:
    """Wait until nothing is pending any more."""
    wait_until(lambda: unfinished() == 0, seconds, saying=lambda: [*Delivery.objects.open().values()[:5]])


def run_worker_until_done() -> None:
    """Run a worker until nothing is pending any more."""
    with running_worker():
        wait_until_done()


def cut_pauses_until_done() -> None:
    """Cut every pause short until nothing is pending any more."""

    def hurried() -> bool:
        make_due()
        return unfinished() == 0

    wait_until(hurried, saying=lambda: [*Delivery.objects.open().values()[:5]])


def holds_of(subscriber: Subscriber) -> QuerySet[Hold]:
    """Return what has failed and holds the subscriber's line."""
    return Hold.objects.filter(line__subscriber=subscriber).exclude(reason="")


def wait_until_held(subscriber: Subscriber) -> Hold:
    """Wait until the subscriber's line is held and let go; return its hold."""
    held = holds_of(subscriber).filter(line__lease_until=None)
    wait_until(held.exists, saying=lambda: Line.objects.filter(subscriber=subscriber).values())
    return held.select_related("line").get()


def make_due() -> None:
    """Let every pause be over: of lines held, of deferred deliveries, and of QUEUE groups."""
    Line.objects.filter(due_at__isnull=False).update(due_at=Now())
    Hold.objects.update(due_at=Now())
    Delivery.objects.open().filter(due_at__isnull=False).update(due_at=Now())
    QueueGroup.objects.filter(due_at__isnull=False).update(due_at=Now())


def hold_for_minutes(subscriber: Subscriber) -> None:
    """Let a held line wait for some minutes, so that only what the test does can make it due."""
    holds_of(subscriber).update(due_at=Now() + timedelta(minutes=4))


def inactivate(thing: Subscription | Subscriber) -> None:
    type(thing)._default_manager.filter(pk=thing.pk).update(status=Status.INACTIVE)


def activate(thing: Subscription | Subscriber) -> None:
    type(thing)._default_manager.filter(pk=thing.pk).update(status=Status.ACTIVE)


def expire_lease(line: Line) -> None:
    """Let the lease of a line run out, as if its event loop had been frozen."""
    Line.objects.filter(pk=line.pk, lease_until__isnull=False).update(lease_until=Now() - timedelta(milliseconds=1))


def read_page(line: PageRequest, budget: BodyBudget | None = None) -> Buffer[Outgoing]:
    """Return a page of a line, read in a statement of its own."""
    with contextlib.closing(PageReading([line], budget or BodyBudget(MAX_PROCESS_BYTES))) as reading:
        return reading.buffers(rows(*reading.statement))[line.line_id]


def read_groups_of(line: PageRequest) -> Buffer[OutgoingGroup]:
    """Return a page of a QUEUE sender's line."""
    return read_groups([line], BodyBudget(MAX_PROCESS_BYTES), callback_terms())[line.line_id]


def outgoing_of(taken: Claim) -> list[Outgoing]:
    """Return what a claimed line would send, in order."""
    heads = [one.delivery_id for one in taken.holds]
    hand = read_page(PageRequest(taken.line_id, taken.epoch, taken.capacity, heads=heads))
    deliveries, deferred_next = [], taken.deferred_next
    while delivery := hand.take(deferred_next=deferred_next):
        deliveries.append(delivery)
        deferred_next = not delivery.is_deferred
    return deliveries


def crash_while_sending(line: Line, worker: str = "vanished") -> tuple[ActiveLine, Outgoing, int]:
    """Do what a worker does up to its request, and no more: claim, read, mark; return line, delivery and number."""
    (taken,) = claim([line.pk], worker=worker)
    driven = active_line(taken, NO_LINK, 0.0, queue_max_in_flight=1)
    delivery = outgoing_of(taken)[0]
    settled = settle({line.pk: taken.epoch}, marks=[mark_of(driven, delivery)])
    return driven, delivery, settled.started[delivery.id]


def settle(of: ActiveLine | Mapping[int, int], *, spares: bool = False, **parts: Any) -> Settling:
    """Settle this of a line, or of lines with these epochs, in a statement of its own; return what that did."""
    settling = Settling({of.id: of.claim.epoch} if isinstance(of, ActiveLine) else of, **parts)
    settling.note(rows(*settling.statement(spares=spares)))
    return settling


settle_groups = partial(settle, of_groups=True)


def round_trip_of(line: ActiveLine) -> tuple[Slots, RoundTrip]:
    """Return what settles and reads for the slots of a line, and these by state."""
    slots = Slots()
    slots.add(line)
    return slots, RoundTrip(slots, DatabaseBackoff(), BodyBudget(MAX_PROCESS_BYTES), callback_terms())


NO_ANSWER: dict[str, Any] = {
    "status": DeliveryStatus.PENDING,
    "status_code": None,
    "reason": "no answer: gone",
    "uncertain": True,
}


def settlement(
    line: ActiveLine, delivery: Outgoing, status: str = DeliveryStatus.DELIVERED, **fields: Any
) -> Settlement:
    """Return the settlement of a request, answered 200 by default."""
    defaults: dict[str, Any] = {
        "pause": None,
        "uncertain": False,
        "sequence_unused": False,
        "reason": "",
        "started_at": datetime.now(UTC),
        "duration_ms": 3,
        "status_code": 200,
        "answer_headers": b"HTTP/1.1 200 OK\r\n",
        "answer_excerpt": b"\x00\xff",
    }
    return Settlement(line.id, delivery.id, DeliveryStatus(status), **(defaults | fields))


def terminate_backends() -> int:
    """Cut every connection to this database but this thread's, as a restart does, and wait for it; return how many."""
    own = connection.connection.info.backend_pid if connection.connection else 0
    with another_connection() as other:
        row = other.execute(
            "SELECT count(pg_terminate_backend(pid, 10000)) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid NOT IN (pg_backend_pid(), %s)",
            [own],
        ).fetchone()
    return int(row[0]) if row else 0
