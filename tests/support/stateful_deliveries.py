"""Workers, answers, failures and bookkeeping for stateful tests: try random operations in random order."""

from collections import Counter
from collections.abc import Callable
from typing import Any, ClassVar, Final

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule, run_state_machine_as_test

from delivery.dispatch.claim import end_leases_of
from delivery.models import Attempt, Delivery, Line
from delivery.operations import cancel_deliveries_of
from delivery.statuses import DeliveryStatus
from delivery.worker.slots import Settlement, Withheld
from subscriptions.models import EventType, Status, Subscriber, Subscription
from tests.support.broker import (
    activate,
    expire_lease,
    inactivate,
    lines_with_due_work,
    make_due,
    note_floors_now,
    publish_bodies,
)
from tests.support.database import execute
from tests.support.stepped_worker import FailingDatabase, Request, SteppedWorker

NO_ANSWERS: Final = ["refused", "lost", "cut"]
"""Not connected, connected but never arrived, arrived and cut off."""
ROUNDS_TO_FINISH: Final = 200
_DELIVERY: Final = [
    *(
        "announcement",
        "attempt",
        "delivery",
        "lineevent",
        "message",
        "pace",
        "pageread",
        "queuegroup",
        "replay",
        "turnfloor",
    ),
    "line",
]
_SUBSCRIPTIONS: Final = ["subscription", "subscriber", "eventtype"]
TABLES: Final = [f"delivery_{name}" for name in _DELIVERY] + [f"subscriptions_{name}" for name in _SUBSCRIPTIONS]

worker_numbers = st.integers(0, 1)
subscription_numbers = st.integers(0, 2)
answers = st.runner().flatmap(lambda machine: st.sampled_from(machine.may_be_answered))


class StatefulDeliveries(RuleBasedStateMachine):
    """Three subscriptions, two workers, and what can happen to them, for TOPIC and QUEUE alike."""

    may_be_answered: ClassVar[tuple[int | str, ...]]
    """By endpoints: a status, or one of `NO_ANSWERS`."""
    subscriptions: list[Subscription]

    def __init__(self, database: FailingDatabase) -> None:
        super().__init__()
        self.database = database
        self.database.notify(self)
        self.names = 0
        self.workers = [self.new_worker(), self.new_worker()]
        self.frozen: list[SteppedWorker] = []
        self.published: dict[int, Delivery] = {}
        self.requests: list[Request] = []
        self.ended: dict[int, str] = {}
        self.asked: set[int] = set()
        """Under way when it was cancelled."""
        self.unclean_ends: Counter[int] = Counter()
        """By line: crashes, and freezes past the lease."""
        self.switched_off: set[tuple[str, int]] = set()
        self.changes_amid_failures = 0
        """Settles that failed while a configuration changed."""

    # --- what each machine says ------------------------------------------------------------------------

    def on_request(self, request: Request) -> None:
        """Check what must hold when a request leaves, and note it."""
        raise NotImplementedError

    def on_settling(self) -> None:
        """Note how things stand right before a round is settled."""

    def on_settled(self) -> None:
        """Note how they stand right after."""

    def on_recorded(self, settlement: Settlement, epoch: int) -> None:
        """Check what is recorded of a request, and note what becomes of its delivery."""
        raise NotImplementedError

    def on_withheld(self, withheld: Withheld) -> None:
        """Check and note that a delivery is not sent, because of its script."""

    def on_abandoned(self, row: Delivery) -> None:
        """Note that a delivery is taken over from a worker that has vanished, with its outcome unknown."""
        raise NotImplementedError

    def check_statuses(self) -> None:
        """Check that nobody but people has changed one."""
        things: list[Subscription | Subscriber] = [*Subscription.objects.all(), *Subscriber.objects.all()]
        off = [one for one in things if one.status == Status.INACTIVE]
        assert {(type(one).__name__, one.pk) for one in off} == self.switched_off, "1.6: never the broker"

    def check_books(self) -> None:
        """Check what is stored in the end."""
        assert dict(Delivery.objects.values_list("id", "status")) == self.ended
        assert self.ended.keys() == self.published.keys()
        recorded = Counter(request.delivery_id for request in self.requests if request.is_recorded)
        assert Counter(Attempt.objects.values_list("delivery_id", flat=True)) == recorded

    # --- what can happen -------------------------------------------------------------------------------

    @rule()
    def pile_up_dead_rows(self) -> None:
        """Let searches begin only where something waits."""
        for _ in range(4):
            note_floors_now()

    @rule(worker=worker_numbers)
    def sweep(self, worker: int) -> None:
        self.take(self.workers[worker], lines_with_due_work())

    @rule(worker=worker_numbers)
    def be_woken_for_nothing(self, worker: int) -> None:
        self.take(self.workers[worker], [*Line.objects.values_list("pk", flat=True)])

    @rule(worker=worker_numbers, which=st.integers(0, 5), result=answers)
    @precondition(lambda self: self.is_asking)
    def answer(self, worker: int, which: int, result: int | str) -> None:
        self.answer_of(self.workers[worker], which, result)

    @rule(which=st.integers(0, 5), result=answers)
    @precondition(lambda self: self.frozen)
    def thaw(self, which: int, result: int | str) -> None:
        self.answer_of(self.frozen[0], which, result)

    @rule(worker=worker_numbers)
    @precondition(lambda self: self.is_at_work)
    def end_turn(self, worker: int) -> None:
        self.workers[worker].end_turn()

    @rule()
    def pass_time(self) -> None:
        """Let every pause be over."""
        make_due()

    @rule(at=subscription_numbers)
    def switch(self, at: int) -> None:
        self.switch_one(Subscription.objects.get(pk=self.subscriptions[at].pk))

    @rule(at=subscription_numbers)
    def change(self, at: int) -> None:
        Subscription.objects.get(pk=self.subscriptions[at].pk).save()

    @rule(at=subscription_numbers)
    def cancel(self, at: int) -> None:
        mine = Delivery.objects.open().filter(subscription=self.subscriptions[at].pk)
        waiting = mine.filter(status__in=[DeliveryStatus.PENDING, DeliveryStatus.HELD])
        pending = [*waiting.values_list("pk", flat=True)]
        assert cancel_deliveries_of(self.subscriptions[at].pk, reason="unwanted")[0] == len(pending)
        self.ended |= dict.fromkeys(pending, DeliveryStatus.CANCELLED.value)
        self.asked |= {*mine.values_list("pk", flat=True)}

    @rule(worker=worker_numbers, same_name=st.booleans(), has_arrived=st.booleans())
    @precondition(lambda self: self.is_at_work)
    def crash(self, worker: int, same_name: bool, has_arrived: bool) -> None:
        gone = self.workers[worker]
        for request in gone.wire.in_flight:
            request.may_have_arrived = has_arrived
        self.note_unclean_end(gone)
        self.workers[worker] = self.new_worker(gone.name if same_name else "")
        if same_name:
            end_leases_of(gone.name)

    @rule(worker=worker_numbers)
    @precondition(lambda self: self.is_at_work)
    def freeze(self, worker: int) -> None:
        sleeper = self.workers[worker]
        if sleeper.lines:
            self.expire_leases_of(sleeper)
            self.frozen.append(sleeper)
            self.workers[worker] = self.new_worker()

    @rule()
    def outlast_leases(self) -> None:
        for sleeper in self.frozen:
            self.expire_leases_of(sleeper)
        living = {line.id for worker in self.workers for line in worker.lines}
        for line in Line.objects.filter(lease_until__isnull=False).exclude(pk__in=living):
            expire_lease(line)

    @rule(
        after_commit=st.booleans(),
        meanwhile=st.sampled_from(["", "switch", "change", "cancel", "freeze"]),
        at=subscription_numbers,
    )
    def let_the_database_fail(self, after_commit: bool, meanwhile: str, at: int) -> None:
        happens = {
            "": lambda: None,
            "switch": lambda: self.switch(at),
            "change": lambda: self.change(at),
            "cancel": lambda: self.cancel(at),
            "freeze": self.freeze_all,
        }
        self.changes_amid_failures += bool(meanwhile)
        self.database.fail_next(after_commit=after_commit, meanwhile=happens[meanwhile])

    # --- how it happens --------------------------------------------------------------------------------

    @property
    def is_at_work(self) -> bool:
        """Whether a worker drives anything."""
        return any(worker.lines for worker in self.workers)

    @property
    def is_asking(self) -> bool:
        """Whether a worker waits for an answer."""
        return any(worker.wire.in_flight for worker in self.workers)

    def new_worker(self, name: str = "") -> SteppedWorker:
        self.names += 1
        return SteppedWorker(name or f"worker-{self.names}", self.on_request)

    def publish_to(self, event_type: EventType | None, count: int, **fields: Any) -> None:
        assert event_type
        publish_bodies(event_type, *[b"%d" % number for number in range(count)], **fields)
        known = max(self.published, default=0)
        self.published |= {row.pk: row for row in Delivery.objects.open().filter(pk__gt=known)}

    def switch_one(self, one: Subscription | Subscriber) -> None:
        (inactivate if one.status == Status.ACTIVE else self.activate)(one)
        self.switched_off ^= {(type(one).__name__, one.pk)}

    def activate(self, one: Subscription | Subscriber) -> None:
        activate(one)

    def take(self, worker: SteppedWorker, line_ids: list[int]) -> None:
        driven = {line_id for line_id in line_ids if self.is_driven(line_id)}
        in_flight = Delivery.objects.open().filter(line__in=line_ids, status=DeliveryStatus.IN_FLIGHT)
        abandoned = [row for row in in_flight if row.line_id not in driven]
        for row in abandoned:
            self.on_abandoned(row)
            if row.cancel_requested:
                self.ended[row.pk] = DeliveryStatus.CANCELLED.value
        taken = {*worker.take(line_ids)}
        assert {row.line_id for row in abandoned} <= taken
        assert not driven & taken, "a lease is respected"

    def is_driven(self, line_id: int) -> bool:
        """Return whether the lease of a line still runs."""
        return bool(execute("SELECT lease_until > clock_timestamp() FROM delivery_line WHERE id = %s", [line_id])[0][0])

    def answer_of(self, worker: SteppedWorker, which: int, result: int | str) -> None:
        """Answer one of the requests that are under way; `result` is a status, or one of `NO_ANSWERS`."""
        if not worker.wire.in_flight:
            return
        request = worker.wire.in_flight[which % len(worker.wire.in_flight)]
        request.result = result
        request.may_have_arrived = result not in ("refused", "lost")
        worker.answer_all({request: result})
        self.forget_thawed()

    def forget_thawed(self) -> None:
        self.frozen = [sleeper for sleeper in self.frozen if sleeper.lines]

    def freeze_all(self) -> None:
        for worker in self.workers:
            self.expire_leases_of(worker)

    def note_unclean_end(self, worker: SteppedWorker) -> None:
        for line in worker.lines:
            self.unclean_ends[line.id] += line.claim.concurrency

    def expire_leases_of(self, worker: SteppedWorker) -> None:
        self.note_unclean_end(worker)
        for line in worker.lines:
            line.renewed_at -= 1_000
            Line.objects.filter(pk=line.id, epoch=line.claim.epoch, lease_until__isnull=False).update(
                lease_until="2020-01-01T00:00:00Z"
            )

    def of(self, delivery_id: int) -> list[Request]:
        return [request for request in self.requests if request.delivery_id == delivery_id]

    def recorded_now(self, settlement: Settlement, epoch: int) -> Request:
        """Return the request that a settlement records, marked so."""
        mine = [one for one in self.of(settlement.delivery_id) if one.line_id == settlement.line_id]
        (request,) = [one for one in mine if one.epoch == epoch and not one.is_recorded]
        request.is_recorded = True
        return request

    # --- how it ends -----------------------------------------------------------------------------------

    def teardown(self) -> None:
        try:
            self.finish()
            self.check_statuses()
            self.check_books()
        finally:
            for table in TABLES:
                execute(f"DELETE FROM {table}")

    def finish(self) -> None:
        """Let everything that is unfinished be sent and answered 200, without further trouble."""
        self.database.notify(self)
        self.check_statuses()
        self.activate_all()
        self.switched_off.clear()
        self.frozen = []
        for _ in range(ROUNDS_TO_FINISH):
            if not Delivery.objects.open().exists():
                return
            self.finish_round()
        pytest.fail(f"lost: {[*Delivery.objects.open().values()]}")

    def activate_all(self) -> None:
        for one in self.subscriptions:
            self.activate(one)

    def finish_round(self) -> None:
        self.outlast_leases()
        self.pass_time()
        self.take(self.workers[0], lines_with_due_work())
        for worker in self.workers:
            self.finish_with(worker)

    def finish_with(self, worker: SteppedWorker) -> None:
        for _request in [*worker.wire.in_flight]:
            self.answer_of(worker, 0, 200)


def run_random_history(machine: Callable[[FailingDatabase], StatefulDeliveries], database: FailingDatabase) -> None:
    """Let a machine try random operations, in a twentieth as many examples as other properties have."""
    run_state_machine_as_test(
        lambda: machine(database),  # type: ignore[arg-type]  # any callable will do
        settings=settings(max_examples=settings().max_examples // 20, suppress_health_check=[*HealthCheck]),
    )
