"""Whatever happens in whatever order: nothing lost, nothing doubled, nothing overtaken (behaviour 1.7 to 1.8, 4)."""

from collections import Counter, defaultdict
from typing import Any

import pytest
from django.db import connection
from hypothesis import HealthCheck, note, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from delivery import batches
from delivery.cancelling import cancel_deliveries_of
from delivery.claiming import end_leases_of
from delivery.holding import release
from delivery.models import Attempt, Delivery, Line, LineEvent
from delivery.settlements import Settlement, Withheld
from delivery.statuses import DeliveryStatus
from delivery.sweeping import lines_with_due_work
from delivery.transfers import RequestNotCompleted
from subscriptions.models import Status, Subscriber, Subscription
from subscriptions.scripts.jobs import Failed, Lost, Made, NotRun, Result
from tests.driving import activate, expire_lease, inactivate, make_due, publish_bodies
from tests.factories import event_type, subscriber, subscription
from tests.stepping import Database, Request, SteppedWorker

CANCELLED, HELD, IN_FLIGHT = DeliveryStatus.CANCELLED, DeliveryStatus.HELD, DeliveryStatus.IN_FLIGHT
PENDING = DeliveryStatus.PENDING
ANSWERS = [200, 200, 200, 302, 404, 500, 500, 503, "refused", "lost", "cut"]
"""A status; or no answer: not connected, connected but never arrived, arrived and cut off."""
TABLES = ["delivery_attempt", "delivery_delivery", "delivery_lineevent", "delivery_message", "delivery_line"]
TABLES += ["subscriptions_subscription", "subscriptions_subscriber", "subscriptions_eventtype"]

HOLD, SET_ASIDE = ("PENDING", True), ("PENDING", False)
MEANS: dict[int | str, tuple[str, bool]] = {
    200: ("DELIVERED", True),
    302: ("3xxNOTSUPPORTED", True),
    404: ("REJECTED", True),
    500: SET_ASIDE,
    503: HOLD,
    "refused": HOLD,
    "lost": HOLD,
    "cut": HOLD,
}
RESULTS: list[Result] = [Made(), Made(b"made"), Failed("thrown"), Lost("gone"), NotRun()]
workers = st.integers(0, 1)
which = st.integers(0, 2)


class Broker(RuleBasedStateMachine):
    """Two subscribers, three subscriptions, two workers, and everything that can happen to them."""

    def __init__(self, database: Database) -> None:
        super().__init__()
        self.database = database
        self.database.tell(self.on_recorded, self.on_withheld)
        first, second = subscriber(), subscriber()
        shared = event_type()
        self.subscriptions = [
            subscription(first, shared),
            subscription(first, script="made up"),
            subscription(second, shared),
        ]
        self.subscribers = [first, second]
        self.lines = {line.subscriber_id: line.pk for line in Line.objects.all()}
        self.names = 0
        self.workers = [self.new_worker(), self.new_worker()]
        self.frozen: list[SteppedWorker] = []
        self.now = 0
        """Counts what happens."""
        self.published: dict[int, Delivery] = {}
        self.inactive_at: dict[tuple[str, int], int] = defaultdict(lambda: -1)
        """When a subscription or subscriber was last inactive."""
        self.read_at: dict[Any, tuple[object, int]] = {}
        """The page a line has in hand, and when it was read."""
        self.requests: list[Request] = []
        self.ended: dict[int, str] = {}
        self.asked: set[int] = set()
        """Under way when it was cancelled."""
        self.interrupted: set[int] = set()
        """Under way when its worker vanished or froze."""
        self.cut: set[int] = set()
        """Not answered, though it may have arrived."""
        self.unclean_ends: Counter[int] = Counter()
        """By line: crashes, and freezes past the lease."""
        self.withheld: set[int] = set()
        """Held or set aside because of their scripts: others may overtake them."""
        self.heads: dict[int, tuple[int, int]] = {}
        """By line: the delivery that must not be overtaken, and since when; a line forgets one that is inactive."""
        self.numbers: dict[int, int] = {}
        """By delivery."""
        self.last_number: Counter[int] = Counter()
        """By line."""

    def new_worker(self, name: str = "") -> SteppedWorker:
        self.names += 1
        return SteppedWorker(name or f"worker-{self.names}", self.on_request)

    # --- what can happen -------------------------------------------------------------------------------

    @rule(at=which, count=st.integers(1, 4))
    def publish(self, at: int, count: int) -> None:
        publish_bodies(self.subscriptions[at].event_type, *[b"%d" % number for number in range(count)])
        known = max(self.published, default=0)
        self.published |= {row.pk: row for row in Delivery.objects.open().filter(pk__gt=known)}

    @rule(worker=workers)
    def sweep(self, worker: int) -> None:
        self.take(self.workers[worker], lines_with_due_work())

    @rule(worker=workers)
    def be_woken_for_nothing(self, worker: int) -> None:
        self.take(self.workers[worker], [*self.lines.values()])

    @rule(worker=workers, which=st.integers(0, 5), result=st.sampled_from(ANSWERS))
    def answer(self, worker: int, which: int, result: int | str) -> None:
        self.answer_of(self.workers[worker], which, result)

    @rule(which=st.integers(0, 5), result=st.sampled_from(ANSWERS))
    @precondition(lambda self: self.frozen)
    def thaw(self, which: int, result: int | str) -> None:
        self.answer_of(self.frozen[0], which, result)

    @rule(worker=workers, result=st.sampled_from(RESULTS))
    def end_script(self, worker: int, result: Result) -> None:
        self.end_script_of(self.workers[worker], result)

    @rule(result=st.sampled_from(RESULTS))
    @precondition(lambda self: self.frozen)
    def thaw_script(self, result: Result) -> None:
        self.end_script_of(self.frozen[0], result)

    @rule()
    def release(self) -> None:
        release([*Delivery.objects.open().filter(status=HELD).values_list("pk", flat=True)])

    @rule(worker=workers)
    def end_turn(self, worker: int) -> None:
        self.workers[worker].end_turn()

    @rule()
    def pass_time(self) -> None:
        make_due()

    @rule(at=which, is_subscriber=st.booleans())
    def switch(self, at: int, is_subscriber: bool) -> None:
        thing: Subscription | Subscriber = self.subscriptions[at]
        if is_subscriber:
            thing = self.subscriptions[at].subscriber
        thing.refresh_from_db()
        if thing.status == Status.ACTIVE:
            inactivate(thing)
        else:
            self.inactive_at[type(thing).__name__, thing.pk] = self.now
            activate(thing)

    @rule(at=which)
    def change(self, at: int) -> None:
        Subscription.objects.get(pk=self.subscriptions[at].pk).save()

    @rule(at=which)
    def cancel(self, at: int) -> None:
        one = self.subscriptions[at].pk
        waiting = Delivery.objects.open().filter(subscription=one, status__in=[PENDING, HELD])
        pending = [*waiting.values_list("pk", flat=True)]
        assert cancel_deliveries_of(one, reason="unwanted")[0] == len(pending)
        self.ended |= dict.fromkeys(pending, CANCELLED.value)
        self.asked |= {*Delivery.objects.open().filter(subscription=one).values_list("pk", flat=True)}

    @rule(worker=workers, same_name=st.booleans(), has_arrived=st.booleans())
    def crash(self, worker: int, same_name: bool, has_arrived: bool) -> None:
        gone = self.workers[worker]
        for request in gone.wire.under_way:
            request.may_have_arrived = has_arrived
        self.note_unclean_end(gone)
        self.workers[worker] = self.new_worker(gone.name if same_name else "")
        if same_name:
            end_leases_of(gone.name)

    @rule(worker=workers)
    def freeze(self, worker: int) -> None:
        sleeper = self.workers[worker]
        if not sleeper.lines:
            return
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
            "switch": lambda: self.switch(at, is_subscriber=False),
            "change": lambda: self.change(at),
            "cancel": lambda: self.cancel(at),
            "freeze": self.freeze_all,
        }
        self.database.fail_next(after_commit=after_commit, meanwhile=happens[meanwhile])

    def freeze_all(self) -> None:
        for worker in self.workers:
            self.expire_leases_of(worker)

    # --- how it happens --------------------------------------------------------------------------------

    def take(self, worker: SteppedWorker, line_ids: list[int]) -> None:
        abandoned = {
            row.pk: row
            for row in Delivery.objects.open().filter(line__in=line_ids, status=IN_FLIGHT)
            if not self.is_driven(row.line_id or 0)
        }
        taken_over = {row.line_id for row in abandoned.values()}
        driven = {line_id for line_id in line_ids if self.is_driven(line_id)}
        for row in abandoned.values():
            self.interrupted.add(row.pk)
            self.note_number(row.pk, row.line_id or 0, row.sequence or 0)
            self.heads[row.line_id or 0] = row.pk, self.now
            if row.cancel_requested:
                self.ended[row.pk] = CANCELLED.value
        taken = worker.take(line_ids)
        assert taken_over <= set(taken)
        assert not driven & set(taken), "a lease is respected"

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
        request.may_have_arrived = result not in ("refused", "lost")
        if isinstance(result, str):
            worker.answer(request, RequestNotCompleted(result, was_sent=result != "refused"))
        else:
            worker.answer(request, result)
        if worker in self.frozen and not worker.lines:
            self.frozen.remove(worker)

    def end_script_of(self, worker: SteppedWorker, result: Result) -> None:
        if worker.scripts.running:
            worker.finish_script(0, result)
        if worker in self.frozen and not worker.lines:
            self.frozen.remove(worker)

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
        delivery_id, line_id = settlement.delivery_id, settlement.line_id
        (request,) = [one for one in self.of(delivery_id) if one.epoch == epoch and not one.is_recorded]
        request.is_recorded = True
        assert (settlement.status.value, settlement.pause is None) == MEANS[request.result], "4.3 to 4.8"
        self.cut |= {delivery_id} if settlement.uncertain else set()
        if settlement.unsent:
            assert self.numbers.pop(delivery_id) == self.last_number[line_id]
            self.last_number[line_id] -= 1
        stays = settlement.status == PENDING
        if not Delivery.objects.open().filter(pk=delivery_id).exists():
            self.ended[delivery_id] = CANCELLED.value if stays else settlement.status.value
        assert delivery_id in self.ended or delivery_id not in self.asked, "what is cancelled ends"
        if stays and settlement.pause is None:
            self.heads[line_id] = delivery_id, self.now
        elif self.heads.get(line_id, (0, 0))[0] == delivery_id:
            del self.heads[line_id]

    def on_withheld(self, withheld: Withheld) -> None:
        row = Delivery.objects.open().filter(pk=withheld.delivery_id).first()
        assert row is None or row.status == withheld.status, "8.3, unless it was cancelled"
        self.withheld.add(withheld.delivery_id)
        if self.heads.get(withheld.line_id, (0, 0))[0] == withheld.delivery_id:
            del self.heads[withheld.line_id]

    def note_number(self, delivery_id: int, line_id: int, number: int) -> None:
        if delivery_id in self.numbers:
            assert self.numbers[delivery_id] == number, "a delivery keeps its number"
        else:
            assert number == self.last_number[line_id] + 1, "numbers rise by one"
            self.numbers[delivery_id] = self.last_number[line_id] = number

    # --- what must hold at each request ----------------------------------------------------------------

    def on_request(self, request: Request) -> None:
        note(f"request {request.delivery_id} number {request.sequence} flagged {request.is_flagged}")
        row = Delivery.objects.open().get(pk=request.delivery_id)
        assert (row.status, row.sequence) == (IN_FLIGHT, request.sequence)
        assert request.delivery_id not in self.ended, "nothing is sent that has ended"
        assert self.is_active(row), "nothing is sent to what is not active"
        assert Line.objects.get(pk=request.line_id).epoch == request.epoch, "only who owns a line sends"
        self.check_flag(request)
        self.check_alone(request)
        self.check_turn(request, row)
        self.note_number(request.delivery_id, request.line_id, request.sequence)
        self.requests.append(request)

    def of(self, delivery_id: int) -> list[Request]:
        return [request for request in self.requests if request.delivery_id == delivery_id]

    def check_flag(self, request: Request) -> None:
        unknown = request.delivery_id in self.interrupted or request.delivery_id in self.cut
        unknown |= any(not earlier.is_recorded for earlier in self.of(request.delivery_id))
        assert request.is_flagged == unknown, "flagged where an earlier outcome is unknown"

    def check_alone(self, request: Request) -> None:
        others = [
            other
            for worker in self.workers
            for other in worker.wire.under_way
            if other is not request and (other.line_id, other.epoch) == (request.line_id, request.epoch)
        ]
        assert not others, "one at a time"

    def check_turn(self, request: Request, row: Delivery) -> None:
        hand, read_at = self.read_at.get(request.line, (None, 0))
        if hand is not request.line.hand:
            read_at = self.now
            self.read_at[request.line] = request.line.hand, read_at
        head, since = self.heads.get(request.line_id, (row.pk, 0))
        if head != row.pk and head not in self.ended:
            assert not self.could_be_sent(head, min(since, read_at)), "the head is not overtaken"
            del self.heads[request.line_id]
        if row.pk not in self.numbers:
            for older in self.published:
                is_mine = self.published[older].line_id == row.line_id and older not in self.withheld
                if older < row.pk and is_mine and older not in self.numbers:
                    assert not self.could_be_sent(older, read_at), "what is older is sent first"

    def could_be_sent(self, delivery_id: int, read_at: int) -> bool:
        """Tell whether a delivery was to be had when the page was read, and still is."""
        row = Delivery.objects.open().filter(pk=delivery_id).first()
        return bool(row and self.is_active(row) and self.was_active(row, read_at))

    def is_active(self, row: Delivery) -> bool:
        one = Subscription.objects.select_related("subscriber").get(pk=row.subscription_id or 0)
        return one.status == one.subscriber.status == Status.ACTIVE

    def was_active(self, row: Delivery, since: int) -> bool:
        one = Subscription.objects.get(pk=row.subscription_id or 0)
        both = ("Subscription", one.pk), ("Subscriber", one.subscriber_id)
        return all(self.inactive_at[thing] < since for thing in both)

    @invariant()
    def count(self) -> None:
        self.now += 1

    # --- what must hold in the end ---------------------------------------------------------------------

    def teardown(self) -> None:
        try:
            self.finish()
            self.check_statuses()
            self.check_requests()
        finally:
            with connection.cursor() as cursor:
                for table in TABLES:
                    cursor.execute(f"DELETE FROM {table}")  # noqa: S608 - names of ours

    def finish(self) -> None:
        """Let everything that is unfinished be sent and answered 200, without further trouble."""
        self.database.tell(self.on_recorded, self.on_withheld)
        things: list[Subscription | Subscriber] = [*self.subscriptions, *self.subscribers]
        for thing in things:
            activate(thing)
            self.inactive_at[type(thing).__name__, thing.pk] = self.now
        self.frozen = []
        for _ in range(200):
            if not Delivery.objects.open().exists():
                return
            self.now += 1
            self.outlast_leases()
            self.release()
            make_due()
            self.take(self.workers[0], lines_with_due_work())
            for worker in self.workers:
                self.finish_with(worker)
        pytest.fail(f"lost: {[*Delivery.objects.open().values()]}")

    def finish_with(self, worker: SteppedWorker) -> None:
        for _script in [*worker.scripts.running]:
            self.end_script_of(worker, Made(b"made"))
        for _request in [*worker.wire.under_way]:
            self.answer_of(worker, 0, 200)

    def check_statuses(self) -> None:
        assert dict(Delivery.objects.values_list("id", "status")) == self.ended
        assert self.ended.keys() == self.published.keys()

    def check_requests(self) -> None:
        recorded = Counter(request.delivery_id for request in self.requests if request.is_recorded)
        assert Counter(Attempt.objects.values_list("delivery_id", flat=True)) == recorded
        told = {*LineEvent.objects.values_list("line_id", "sequence")}
        for line_id in self.lines.values():
            mine = [request for request in self.requests if request.line_id == line_id]
            arrived = {request.sequence for request in mine if request.may_have_arrived}
            missing = {*range(1, self.last_number[line_id] + 1)} - arrived
            assert missing <= {number for line, number in told if line == line_id}, "gaps are told"
            assert len([request for request in mine if not request.is_recorded]) <= self.unclean_ends[line_id]


@pytest.mark.behaviour("4.10", "4.11", "11.3")
def test_anything_goes(storage: None, monkeypatch: pytest.MonkeyPatch) -> None:
    database = Database()
    monkeypatch.setattr(batches, "settle", database)
    run_state_machine_as_test(
        lambda: Broker(database),  # type: ignore[arg-type]  # any callable will do
        settings=settings(max_examples=settings().max_examples // 3, suppress_health_check=[*HealthCheck]),
    )
