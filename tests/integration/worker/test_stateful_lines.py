"""Random operations and random histories: nothing lost, doubled or overtaken (contract 4, 5, 6)."""

from collections import Counter
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
from hypothesis import currently_in_test_context, note
from hypothesis import strategies as st
from hypothesis.stateful import invariant, precondition, rule

from delivery.dispatch import claim
from delivery.models import Delivery, Lane, Line, LineEvent
from delivery.operations import release
from delivery.outcomes import Decision
from delivery.statuses import DeliveryStatus
from delivery.worker import leases, line
from delivery.worker.slots import Settlement, Withheld
from subscriptions.models import RetryPolicy
from subscriptions.scripting.jobs import Failed, Lost, Made, NotRun, Result
from tests.histories.history import History, run_history
from tests.histories.world import LONG_SECONDS, World, prepared_world
from tests.support.factories import event_type, retry_policy, subscriber, subscription
from tests.support.side_operations import DAY_SECONDS, POLICY_TERMS, SIDE_EVENTS, PolicyOperations, message_counts
from tests.support.stateful_deliveries import NO_ANSWERS, run_random_history, subscription_numbers, worker_numbers
from tests.support.stepped_worker import FailingDatabase, Request, SteppedWorker

CANCELLED, HELD, IN_FLIGHT = DeliveryStatus.CANCELLED, DeliveryStatus.HELD, DeliveryStatus.IN_FLIGHT
PENDING = DeliveryStatus.PENDING
WITH_PAUSE = {Decision.DEFER, Decision.RETRY_LANE}
"""What lets a delivery wait, and not its line."""
RESULTS: list[Result] = [Made(), Made(b"made"), Failed("thrown"), Lost("gone"), NotRun()]

CANCELLED_STATUS, DELIVERED, PENDING_STATUS, REDUNDANT = "CANCELLED", "DELIVERED", "PENDING", "REDUNDANT"
ENDS: dict[int | str, str] = {200: DELIVERED, 302: "3xxNOTSUPPORTED", 404: "REJECTED"}


class StatefulTopic(PolicyOperations):
    """Two subscribers, three subscriptions with a policy each, two workers, and everything that can happen to them."""

    may_be_answered = (200, 200, 200, 302, 404, 429, 500, 500, 503, *NO_ANSWERS)

    def __init__(self, database: FailingDatabase, policies: list[RetryPolicy]) -> None:
        super().__init__(database, policies)
        first, second = subscriber(), subscriber()
        shared = event_type()
        self.subscriptions = [
            subscription(first, shared),
            subscription(first, script="made up"),
            subscription(second, shared),
        ]
        self.subscribers = [first, second]
        self.lines = {line.subscriber_id: line.pk for line in Line.objects.filter(lane=Lane.MAIN)}
        self.retry_lines = {line.subscriber_id: line.pk for line in Line.objects.filter(lane=Lane.RETRY)}
        self.main_of = {line.pk: self.lines[line.subscriber_id] for line in Line.objects.all()}
        self.retry_of = {line.pk: self.retry_lines[line.subscriber_id] for line in Line.objects.all()}
        self.attempts: Counter[int] = Counter()
        """By delivery: those recorded."""
        self.read_at: dict[Any, tuple[object, int]] = {}
        """The page a line has in hand, and when it was read."""
        self.interrupted: set[int] = set()
        """In flight when its worker vanished or froze."""
        self.cut: set[int] = set()
        """Not answered, though it may have arrived."""
        self.withheld: set[int] = set()
        """Held or deferred because of their scripts: others may overtake them."""
        self.heads: dict[int, tuple[int, int]] = {}
        """By line: the delivery that must not be overtaken, and since when; a line forgets one that is inactive."""
        self.sent: set[int] = set()
        """Deliveries of which a request has left, or was about to."""
        self.numbers: dict[int, int] = {}
        """By delivery, of those that have one."""
        self.last_number: Counter[int] = Counter()
        """By line."""

    # --- what can happen -------------------------------------------------------------------------------

    @rule(at=subscription_numbers, count=message_counts)
    def publish(self, at: int, count: int) -> None:
        self.publish_to(self.subscriptions[at].event_type, count)

    @rule(worker=worker_numbers, result=st.sampled_from(RESULTS))
    def end_script(self, worker: int, result: Result) -> None:
        self.end_script_of(self.workers[worker], result)

    @rule(result=st.sampled_from(RESULTS))
    @precondition(lambda self: self.frozen)
    def thaw_script(self, result: Result) -> None:
        self.end_script_of(self.frozen[0], result)

    @rule()
    def release(self) -> None:
        release([*Delivery.objects.open().filter(status=HELD).values_list("pk", flat=True)])

    # --- how it happens --------------------------------------------------------------------------------

    def on_abandoned(self, row: Delivery) -> None:
        self.interrupted.add(row.pk)
        line_id = row.line_id or 0
        self.sent.add(row.pk)
        if row.sequence:
            self.note_number(row.pk, self.main_of[line_id], row.sequence)
            if line_id == self.main_of[line_id]:
                self.heads[line_id] = row.pk, self.now

    def end_script_of(self, worker: SteppedWorker, result: Result) -> None:
        if worker.scripts.running:
            worker.finish_script(0, result)
        self.forget_thawed()

    def on_recorded(self, settlement: Settlement, epoch: int) -> None:
        delivery_id, line_id = settlement.delivery_id, settlement.line_id
        request = self.recorded_now(settlement, epoch)
        decision = self.decide(request, self.attempts[delivery_id])
        assert settlement.status == (decision.final_status or PENDING), "4.3 to 4.8, 5.1"
        assert (settlement.pause is not None) == (decision in WITH_PAUSE)
        self.attempts[delivery_id] += 1
        self.cut |= {delivery_id} if settlement.uncertain else set()
        if settlement.sequence_unused and request.line.is_ordered:
            assert self.numbers.pop(delivery_id) == self.last_number[line_id]
            self.last_number[line_id] -= 1
        self.check_end(request, settlement)
        if decision is Decision.HOLD_THE_LINE and request.line.claim.concurrency == 1:
            self.heads[line_id] = delivery_id, self.now
        elif self.heads.get(line_id, (0, 0))[0] == delivery_id:
            del self.heads[line_id]

    def check_end(self, request: Request, settlement: Settlement) -> None:
        """Check where a delivery is that stays, and note how one has ended that does not."""
        delivery_id, decision = settlement.delivery_id, self.decisions[request]
        row = Delivery.objects.open().filter(pk=delivery_id).first()
        if row:
            assert delivery_id not in self.asked, "what is cancelled ends"
            self.check_place(request, row)
        else:
            self.ended[delivery_id] = CANCELLED.value if settlement.status == PENDING else settlement.status.value
        if row or decision is not Decision.SUSPEND:
            self.check_pause(request)

    def check_place(self, request: Request, row: Delivery) -> None:
        """Check where a delivery is that stays."""
        decision, own, retry_line = (
            self.decisions[request],
            self.main_of[request.line_id],
            self.retry_of[request.line_id],
        )
        if decision is Decision.SUSPEND:
            assert (row.line_id, row.waits_for) == (own, "TURN"), "5.6: in its place"
        elif decision is Decision.RETRY_LANE:
            assert row.line_id == retry_line, "5.3"
        else:
            assert row.line_id == own, "a deferred or held delivery stays in its line"

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
        super().on_request(request)
        if currently_in_test_context():
            note(f"request {request.delivery_id} number {request.sequence} flagged {request.is_flagged}")
        row = Delivery.objects.open().get(pk=request.delivery_id)
        assert (row.status, row.sequence or 0) == (IN_FLIGHT, request.sequence)
        assert request.delivery_id not in self.ended, "nothing is sent that has ended"
        assert self.is_active(row), "nothing is sent to what is not active, or paused"
        assert self.is_in_time(row, self.now + 1), "nothing is sent before its time or after it"
        assert Line.objects.get(pk=request.line_id).epoch == request.epoch, "only who owns a line sends"
        self.check_flag(request)
        self.check_alone(request)
        self.check_rate(request)
        self.check_turn(request, row)
        if request.sequence:
            self.note_number(request.delivery_id, self.main_of[request.line_id], request.sequence)
        self.requests.append(request)

    def check_flag(self, request: Request) -> None:
        unknown = request.delivery_id in self.interrupted or request.delivery_id in self.cut
        unknown |= any(not earlier.is_recorded for earlier in self.of(request.delivery_id))
        assert request.is_flagged == unknown, "flagged where an earlier outcome is unknown"

    def check_alone(self, request: Request) -> None:
        others = [
            other
            for worker in self.workers
            for other in worker.wire.in_flight
            if other is not request and (other.line_id, other.epoch) == (request.line_id, request.epoch)
        ]
        assert len(others) < request.line.claim.concurrency, "one at a time, or as many as are wanted"
        assert request.delivery_id not in {other.delivery_id for other in others}, "4.13: different ones"

    def check_turn(self, request: Request, row: Delivery) -> None:
        """Check that it was a delivery's turn, where there are turns."""
        if row.pk not in self.sent:
            assert row.line_id == self.main_of[request.line_id], "what is sent first is sent by the main line"
        if request.line.claim.concurrency == 1:
            self.check_order(request, row)
        self.sent.add(row.pk)

    def check_order(self, request: Request, row: Delivery) -> None:
        hand, read_at = self.read_at.get(request.line, (None, 0))
        if hand is not request.line.buffer:
            read_at = self.now
            self.read_at[request.line] = request.line.buffer, read_at
        head, since = self.heads.get(request.line_id, (row.pk, 0))
        if head != row.pk and head not in self.ended:
            assert not self.could_be_sent(head, min(since, read_at)), "the head is not overtaken"
            del self.heads[request.line_id]
        if row.pk not in self.sent:
            for older in self.published:
                is_mine = self.published[older].line_id == row.line_id and older not in self.withheld
                if older < row.pk and is_mine and older not in self.sent:
                    assert not self.could_be_sent(older, read_at), "what is older is sent first"

    @invariant()
    def wait_for_a_moment_where_all_do(self) -> None:
        """A retry line reads nothing but what is due: what is not due at any moment there is lost."""
        assert not Delivery.objects.open().filter(line__in=self.retry_lines.values(), waits_for="TURN").exists()

    # --- what must hold in the end ---------------------------------------------------------------------

    def finish_round(self) -> None:
        self.release()
        super().finish_round()

    def finish_with(self, worker: SteppedWorker) -> None:
        for _script in [*worker.scripts.running]:
            self.end_script_of(worker, Made(b"made"))
        super().finish_with(worker)

    def check_books(self) -> None:
        super().check_books()
        recorded = {
            (self.main_of[line_id], number) for line_id, number in LineEvent.objects.values_list("line_id", "sequence")
        }
        for line_id in self.lines.values():
            mine = [request for request in self.requests if self.main_of[request.line_id] == line_id]
            arrived = {request.sequence for request in mine if request.may_have_arrived}
            missing = {*range(1, self.last_number[line_id] + 1)} - arrived
            assert missing <= {number for line, number in recorded if line == line_id}, "gaps are recorded"
        unrecorded = Counter(request.line_id for request in self.requests if not request.is_recorded)
        assert unrecorded <= self.unclean_ends, "one a line for each unclean end"


@pytest.fixture
def long_leases(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no lease run out by itself, however long a test takes on a busy machine."""
    for module in (claim, leases, line):
        monkeypatch.setattr(module, "LEASE_SECONDS", LONG_SECONDS)


@pytest.mark.behaviour("1.6", "2.10", "2.13", "4.10", "4.11", "5.3", "5.5", "5.6", "5.8", "11.3")
def test_random_history(policies: list[RetryPolicy], monkeypatch: pytest.MonkeyPatch) -> None:
    database = FailingDatabase(monkeypatch)
    run_random_history(partial(StatefulTopic, policies=policies), database)


@pytest.mark.behaviour("4.15", "5.3", "5.6")
@pytest.mark.parametrize(
    ("number", "result"), [pytest.param(3, result, marks=pytest.mark.lengthy) for result in (503, "cut")] + [(4, 503)]
)
@pytest.mark.parametrize("event", SIDE_EVENTS)
def test_side_events_while_retries_are_used_up(
    policies: list[RetryPolicy], monkeypatch: pytest.MonkeyPatch, number: int, result: int | str, event: str
) -> None:
    database = FailingDatabase(monkeypatch)
    broker = StatefulTopic(database, policies)
    broker.follow([number, 1, 2])
    broker.wear_out(0, 0, result, ["nothing", event, "nothing", event, event])
    broker.wear_out(0, 1, result, [event, event])
    broker.teardown()


@pytest.fixture
def world(storage: None) -> Iterator[World]:
    with prepared_world() as world:
        yield world


@pytest.mark.behaviour("4.11", "6.4", "6.5")
@pytest.mark.parametrize("count", [40, pytest.param(5_000, marks=pytest.mark.lengthy)])
def test_no_history_breaks_a_promise(world: World, count: int) -> None:
    for seed in range(count):
        broken = run_history(world, seed)
        assert not broken, f"history {seed}\n{broken}"


def test_seed_alone_determines_a_history(world: World) -> None:
    stories = []
    for seed in (3, 7, 3):
        history = History(world, seed)
        history.live()
        stories.append(history.story)
    assert stories[0] == stories[2] != stories[1]


@pytest.fixture
def policies(storage: None, long_leases: None) -> list[RetryPolicy]:
    """Return one with each of the terms."""
    return [retry_policy(**terms, probe_seconds=DAY_SECONDS) for terms in POLICY_TERMS]
