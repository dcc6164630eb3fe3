"""Whatever happens in whatever order: each QUEUE message is taken once, by one of each group (behaviour 4.11, 6)."""

from collections import Counter
from typing import Any

import pytest
from django.db import connection
from hypothesis import HealthCheck, note, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule, run_state_machine_as_test

from delivery import batches, queue_settling
from delivery.cancelling import cancel_deliveries_of
from delivery.claiming import end_leases_of
from delivery.models import Attempt, Delivery, Line, PageRead, QueueGroup
from delivery.settlements import Settlement
from delivery.statuses import DeliveryStatus
from delivery.sweeping import lines_with_due_work
from delivery.transfers import RequestNotCompleted
from subscriptions.models import EventKind, Status, Subscription
from tests.driving import activate, expire_lease, inactivate, make_due, publish_bodies
from tests.factories import event_type, subscription
from tests.stepping import UNDER_WAY, Database, Request, SteppedWorker

CANCELLED, DELIVERED, PENDING, REDUNDANT = "CANCELLED", "DELIVERED", "PENDING", "REDUNDANT"
ANSWERS = [200, 302, 404, 404, 500, 503, 600, "refused", "lost", "cut"]
"""A status; or no answer: not connected, connected but never arrived, arrived and cut off."""
ENDS: dict[int | str, str] = {200: DELIVERED, 302: "3xxNOTSUPPORTED", 404: "REJECTED"}
TABLES = ["delivery_attempt", "delivery_delivery", "delivery_queuegroup", "delivery_pageread", "delivery_message"]
TABLES += ["delivery_line", "subscriptions_subscription", "subscriptions_subscriber", "subscriptions_eventtype"]
workers = st.integers(0, 1)
which = st.integers(0, 2)


class Broker(RuleBasedStateMachine):
    """Two groups, of two subscriptions and of one, two workers, and everything that can happen to them."""

    def __init__(self, database: Database) -> None:
        super().__init__()
        self.database = database
        self.database.tell(self.on_recorded, lambda _withheld: None)
        self.event_type = event_type(kind=EventKind.QUEUE)
        self.subscriptions = [subscription(event_type=self.event_type) for _ in range(2)]
        self.subscriptions += [subscription(event_type=self.event_type, filter="$$->'Header' is not null")]
        self.names = 0
        self.workers = [self.new_worker(), self.new_worker()]
        self.frozen: list[SteppedWorker] = []
        self.published: dict[int, Delivery] = {}
        self.requests: list[Request] = []
        self.ended: dict[int, str] = {}
        self.asked: set[int] = set()
        """Under way when it was cancelled."""
        self.doubtful: set[int] = set()
        """Groups that had a request of which nobody knows what came of it."""
        self.unclean_ends: Counter[int] = Counter()
        """By line: crashes, and freezes past the lease."""
        self.marks_unknown = 0
        """Settles that failed while a configuration changed: a line that cannot know what it has marked is dropped."""

    def new_worker(self, name: str = "") -> SteppedWorker:
        self.names += 1
        return SteppedWorker(name or f"worker-{self.names}", self.on_request)

    # --- what can happen -------------------------------------------------------------------------------

    @rule(count=st.integers(1, 4))
    def publish(self, count: int) -> None:
        publish_bodies(self.event_type, *[b"%d" % number for number in range(count)])
        known = max(self.published, default=0)
        self.published |= {row.pk: row for row in Delivery.objects.open().filter(pk__gt=known)}

    @rule(worker=workers)
    def sweep(self, worker: int) -> None:
        self.take(self.workers[worker], lines_with_due_work())

    @rule(worker=workers)
    def be_woken_for_nothing(self, worker: int) -> None:
        self.take(self.workers[worker], [*Line.objects.values_list("pk", flat=True)])

    @rule(worker=workers, which=st.integers(0, 5), result=st.sampled_from(ANSWERS))
    def answer(self, worker: int, which: int, result: int | str) -> None:
        self.answer_of(self.workers[worker], which, result)

    @rule(which=st.integers(0, 5), result=st.sampled_from(ANSWERS))
    @precondition(lambda self: self.frozen)
    def thaw(self, which: int, result: int | str) -> None:
        self.answer_of(self.frozen[0], which, result)
        self.frozen = [sleeper for sleeper in self.frozen if sleeper.lines]

    @rule(worker=workers)
    def end_turn(self, worker: int) -> None:
        self.workers[worker].end_turn()

    @rule()
    def pass_time(self) -> None:
        make_due()

    @rule(at=which)
    def switch(self, at: int) -> None:
        one = Subscription.objects.get(pk=self.subscriptions[at].pk)
        (inactivate if one.status == Status.ACTIVE else activate)(one)

    @rule(at=which)
    def change(self, at: int) -> None:
        Subscription.objects.get(pk=self.subscriptions[at].pk).save()

    @rule(at=which)
    def cancel(self, at: int) -> None:
        mine = Delivery.objects.open().filter(subscription=self.subscriptions[at].pk)
        pending = [*mine.filter(status=PENDING).values_list("pk", flat=True)]
        assert cancel_deliveries_of(self.subscriptions[at].pk, reason="unwanted")[0] == len(pending)
        self.ended |= dict.fromkeys(pending, CANCELLED)
        self.asked |= {*mine.values_list("pk", flat=True)}

    @rule(worker=workers, same_name=st.booleans())
    def crash(self, worker: int, same_name: bool) -> None:
        gone = self.workers[worker]
        self.note_unclean_end(gone)
        self.workers[worker] = self.new_worker(gone.name if same_name else "")
        if same_name:
            end_leases_of(gone.name)

    @rule(worker=workers)
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

    @rule(after_commit=st.booleans(), meanwhile=st.sampled_from(["", "switch", "change", "cancel", "freeze"]), at=which)
    def let_the_database_fail(self, after_commit: bool, meanwhile: str, at: int) -> None:
        happens = {
            "": lambda: None,
            "switch": lambda: self.switch(at),
            "change": lambda: self.change(at),
            "cancel": lambda: self.cancel(at),
            "freeze": self.freeze_all,
        }
        self.marks_unknown += bool(meanwhile)
        self.database.fail_next(after_commit=after_commit, meanwhile=happens[meanwhile])

    def freeze_all(self) -> None:
        for worker in self.workers:
            self.expire_leases_of(worker)

    # --- how it happens --------------------------------------------------------------------------------

    def take(self, worker: SteppedWorker, line_ids: list[int]) -> None:
        abandoned = {
            row.pk: row
            for row in Delivery.objects.open().filter(line__in=line_ids, status=DeliveryStatus.IN_FLIGHT)
            if not self.is_driven(row.line_id or 0)
        }
        for row in abandoned.values():
            self.doubtful.add(row.group_id or 0)
            if row.cancel_requested:
                self.ended[row.pk] = CANCELLED
        assert {row.line_id for row in abandoned.values()} <= {*worker.take(line_ids)}

    def is_driven(self, line_id: int) -> bool:
        """Tell whether the lease of a line still runs."""
        with connection.cursor() as cursor:
            cursor.execute("SELECT lease_until > clock_timestamp() FROM delivery_line WHERE id = %s", [line_id])
            return bool(cursor.fetchone()[0])

    def answer_of(self, worker: SteppedWorker, which: int, result: int | str) -> None:
        if not worker.wire.under_way:
            return
        request = worker.wire.under_way[which % len(worker.wire.under_way)]
        request.result = result
        no_answer = isinstance(result, str)
        worker.answer(request, RequestNotCompleted(str(result), was_sent=result != "refused") if no_answer else result)  # type: ignore[arg-type]

    def note_unclean_end(self, worker: SteppedWorker) -> None:
        for line in worker.lines:
            self.unclean_ends[line.id] += 1

    def expire_leases_of(self, worker: SteppedWorker) -> None:
        self.note_unclean_end(worker)
        for line in worker.lines:
            line.renewed_at -= 100
            Line.objects.filter(pk=line.id, epoch=line.claim.epoch, lease_until__isnull=False).update(
                lease_until="2020-01-01T00:00:00Z"
            )

    def on_recorded(self, settlement: Settlement, epoch: int) -> None:
        delivery_id, group_id = settlement.delivery_id, self.group_of(settlement.delivery_id)
        (request,) = [one for one in self.of(delivery_id) if one.epoch == epoch and not one.is_recorded]
        request.is_recorded = True
        status = ENDS.get(request.result, PENDING)
        assert settlement.status.value == status, "6.4, 6.5"
        if settlement.uncertain:
            self.doubtful.add(group_id)
        if status != PENDING or delivery_id in self.asked:
            self.ended[delivery_id] = CANCELLED if status == PENDING else status
        if status == DELIVERED:
            self.ended = dict.fromkeys(self.members(group_id), REDUNDANT) | self.ended

    # --- what must hold at each request ----------------------------------------------------------------

    def on_request(self, request: Request) -> None:
        note(f"request {request.delivery_id} attempt {request.attempt} flagged {request.is_flagged}")
        group_id = self.group_of(request.delivery_id)
        row = Delivery.objects.open().get(pk=request.delivery_id)
        assert (row.status, row.line_id) == (DeliveryStatus.IN_FLIGHT, request.line_id)
        assert QueueGroup.objects.filter(pk=group_id).exists(), "nothing is sent for a group that has a winner"
        assert Subscription.objects.get(pk=row.subscription_id or 0).status == Status.ACTIVE
        assert Line.objects.get(pk=request.line_id).epoch == request.epoch, "only who owns a line sends"
        others = [one for one in self.requests if self.group_of(one.delivery_id) == group_id]
        assert request.attempt == 1 + len([one for one in others if one.is_recorded])
        assert request.is_flagged == (group_id in self.doubtful), "flagged where an earlier outcome is unknown"
        assert all(one.is_recorded or one.epoch < request.epoch for one in others), "one endpoint at a time"
        self.requests.append(request)
        mine = [one for one in request.line.strands if one.under_way]
        assert len(mine) <= UNDER_WAY

    def of(self, delivery_id: int) -> list[Request]:
        return [request for request in self.requests if request.delivery_id == delivery_id]

    def group_of(self, delivery_id: int) -> int:
        return self.published[delivery_id].group_id or 0

    def members(self, group_id: int) -> list[int]:
        return [row.pk for row in self.published.values() if row.group_id == group_id]

    # --- what must hold in the end ---------------------------------------------------------------------

    def teardown(self) -> None:
        try:
            self.finish()
            self.check_books()
        finally:
            with connection.cursor() as cursor:
                for table in TABLES:
                    cursor.execute(f"DELETE FROM {table}")  # noqa: S608 - names of ours

    def finish(self) -> None:
        """Let everything that is unfinished be sent and answered 200, without further trouble."""
        self.database.tell(self.on_recorded, lambda _withheld: None)
        for one in self.subscriptions:
            activate(one)
        self.frozen = []
        for _ in range(200):
            if not Delivery.objects.open().exists():
                return
            self.outlast_leases()
            make_due()
            self.take(self.workers[0], lines_with_due_work())
            for worker in self.workers:
                for _request in [*worker.wire.under_way]:
                    self.answer_of(worker, 0, 200)
        pytest.fail(f"lost: {[*Delivery.objects.open().values()]}, {[*QueueGroup.objects.values()]}")

    def check_books(self) -> None:
        books: dict[Any, str] = dict(Delivery.objects.values_list("id", "status"))
        assert books == self.ended
        assert books.keys() == self.published.keys()
        winners = Counter(self.group_of(one) for one, status in books.items() if status == DELIVERED)
        assert max(winners.values(), default=0) <= 1
        redundant = {self.group_of(one) for one, status in books.items() if status == REDUNDANT}
        assert redundant <= winners.keys(), "nothing is redundant where nobody took it"
        assert not QueueGroup.objects.exists()
        recorded = Counter(request.delivery_id for request in self.requests if request.is_recorded)
        assert Counter(Attempt.objects.values_list("delivery_id", flat=True)) == recorded
        lost = Counter(request.line_id for request in self.requests if not request.is_recorded)
        most = {line_id: UNDER_WAY * (self.unclean_ends[line_id] + self.marks_unknown) for line_id in lost}
        assert all(number <= most[line_id] for line_id, number in lost.items())
        notes = Counter(PageRead.objects.values_list("line_id", flat=True))
        assert max(notes.values(), default=0) <= 1, "what is noted for mending does not grow"


@pytest.mark.behaviour("4.11", "6.4", "6.5")
def test_anything_goes_in_queues(storage: None, monkeypatch: pytest.MonkeyPatch) -> None:
    database = Database(queue_settling.settle_groups)
    monkeypatch.setattr(batches, "settle_groups", database)
    run_state_machine_as_test(
        lambda: Broker(database),  # type: ignore[arg-type]  # any callable will do
        settings=settings(max_examples=settings().max_examples // 3, suppress_health_check=[*HealthCheck]),
    )
