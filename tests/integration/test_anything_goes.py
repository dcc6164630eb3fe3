"""Whatever happens in whatever order: nothing lost, nothing doubled, nothing overtaken (behaviour 1.6 to 1.8, 4, 5)."""

from collections import Counter
from functools import partial
from typing import Any

import pytest
from hypothesis import note
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule

from delivery.driving import batches
from delivery.models import Delivery, Lane, Line, LineEvent
from delivery.rules.outcomes import Answered, Decision, Unreachable
from delivery.rules.retry_policies import TEAMFORGE_POLICY, History, judge, policy_of
from delivery.rules.statuses import DeliveryStatus
from delivery.settling.holding import release
from delivery.settling.settlements import Settlement, Withheld
from subscriptions.models import RetryPolicy, Subscription
from subscriptions.retry_terms import ACTIONS, Action, InTheEnd
from subscriptions.scripts.jobs import Failed, Lost, Made, NotRun, Result
from tests.anything_goes import NO_ANSWERS, try_anything, which, workers
from tests.coming_and_going import ComingAndGoing, counts
from tests.factories import event_type, retry_policy, subscriber, subscription
from tests.stepping import Database, Request, SteppedWorker

CANCELLED, HELD, IN_FLIGHT = DeliveryStatus.CANCELLED, DeliveryStatus.HELD, DeliveryStatus.IN_FLIGHT
PENDING = DeliveryStatus.PENDING
WITH_PAUSE = {Decision.SET_ASIDE, Decision.RETRY_APART}
"""What lets a delivery wait, and not its line."""
RESULTS: list[Result] = [Made(), Made(b"made"), Failed("thrown"), Lost("gone"), NotRun()]


class Broker(ComingAndGoing):
    """Two subscribers, three subscriptions with a policy each, two workers, and everything that can happen to them."""

    may_be_answered = (200, 200, 200, 302, 404, 429, 500, 500, 503, *NO_ANSWERS)

    def __init__(self, database: Database, policies: list[RetryPolicy]) -> None:
        super().__init__(database)
        self.policies = policies
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
        self.attempts: Counter[int] = Counter()
        """By delivery: those recorded."""
        self.read_at: dict[Any, tuple[object, int]] = {}
        """The page a line has in hand, and when it was read."""
        self.interrupted: set[int] = set()
        """Under way when its worker vanished or froze."""
        self.cut: set[int] = set()
        """Not answered, though it may have arrived."""
        self.withheld: set[int] = set()
        """Held or set aside because of their scripts: others may overtake them."""
        self.heads: dict[int, tuple[int, int]] = {}
        """By line: the delivery that must not be overtaken, and since when; a line forgets one that is inactive."""
        self.numbers: dict[int, int] = {}
        """By delivery."""
        self.last_number: Counter[int] = Counter()
        """By line."""

    # --- what can happen -------------------------------------------------------------------------------

    @initialize(chosen=st.permutations([3, 1, 2, 0]))
    def follow(self, chosen: list[int]) -> None:
        """Let each subscription follow a policy of its own; 0 is none, and so TeamForge."""
        for one, number in zip(self.subscriptions, chosen, strict=False):
            one.retry_policy = self.policies[number - 1] if number else None
            one.save()

    @rule(at=which, count=counts)
    def publish(self, at: int, count: int) -> None:
        self.publish_to(self.subscriptions[at].event_type, count)

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

    # --- how it happens --------------------------------------------------------------------------------

    def on_abandoned(self, row: Delivery) -> None:
        self.interrupted.add(row.pk)
        line_id = row.line_id or 0
        self.note_number(row.pk, self.main_of[line_id], row.sequence or 0)
        if line_id == self.main_of[line_id]:
            self.heads[line_id] = row.pk, self.now

    def end_script_of(self, worker: SteppedWorker, result: Result) -> None:
        if worker.scripts.running:
            worker.finish_script(0, result)
        self.forget_thawed()

    def on_recorded(self, settlement: Settlement, epoch: int) -> None:
        delivery_id, line_id = settlement.delivery_id, settlement.line_id
        request = self.recorded_now(settlement, epoch)
        decision = self.decision_on(request)
        assert settlement.status == (decision.final_status or PENDING), "4.3 to 4.8, 5.1"
        assert (settlement.pause is not None) == (decision in WITH_PAUSE)
        self.attempts[delivery_id] += 1
        self.cut |= {delivery_id} if settlement.uncertain else set()
        if settlement.unsent:
            assert self.numbers.pop(delivery_id) == self.last_number[line_id]
            self.last_number[line_id] -= 1
        stays = settlement.status == PENDING
        if not Delivery.objects.open().filter(pk=delivery_id).exists():
            self.ended[delivery_id] = CANCELLED.value if stays else settlement.status.value
        assert delivery_id in self.ended or delivery_id not in self.asked, "what is cancelled ends"
        self.check_place(request, decision)
        if decision is Decision.HOLD_THE_LINE:
            self.heads[line_id] = delivery_id, self.now
        elif self.heads.get(line_id, (0, 0))[0] == delivery_id:
            del self.heads[line_id]

    def decision_on(self, request: Request) -> Decision:
        """Return what a policy makes of an outcome, by what was counted here."""
        result, destination = request.result, request.destination
        outcome = Unreachable(result, result != "refused") if isinstance(result, str) else Answered(result)
        is_apart = request.line_id != self.main_of[request.line_id]
        history = History(self.attempts[request.delivery_id], 0, 0, is_apart=is_apart, on_trial=destination.on_trial)
        subscription = next(one for one in self.subscriptions if one.pk == destination.subscription_id)
        policy = policy_of(subscription.retry_policy.terms) if subscription.retry_policy else TEAMFORGE_POLICY
        return judge(outcome, policy, history, chance=0.0).decision

    def check_place(self, request: Request, decision: Decision) -> None:
        """Check in which line a delivery is now, and whether its subscription is as its outcome leaves it."""
        one = Subscription.objects.get(pk=request.destination.subscription_id)
        row = Delivery.objects.open().filter(pk=request.delivery_id).first()
        if decision is Decision.SUSPEND:
            assert row is None or (row.line_id, row.due_at) == (self.main_of[request.line_id], None), "5.6: its place"
            assert row is None or (one.paused_since and not one.on_trial), "5.6: until a probe works"
        elif request.destination.on_trial:
            self.goes_on(one)
            assert not one.on_trial, "5.6: whatever else an endpoint answers is a sign of life"
        if decision is Decision.RETRY_APART:
            assert row is None or row.line_id == self.retry_lines[one.subscriber_id], "5.3: apart"

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
        assert self.is_active(row), "nothing is sent to what is not active, or paused"
        assert self.is_in_time(row, self.now + 1), "nothing is sent before its time or after it"
        assert Line.objects.get(pk=request.line_id).epoch == request.epoch, "only who owns a line sends"
        self.check_flag(request)
        self.check_alone(request)
        self.check_turn(request, row)
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
            assert row.line_id == self.main_of[request.line_id], "what is sent first is sent by the main line"
            for older in self.published:
                is_mine = self.published[older].line_id == row.line_id and older not in self.withheld
                if older < row.pk and is_mine and older not in self.numbers:
                    assert not self.could_be_sent(older, read_at), "what is older is sent first"

    @invariant()
    def wait_for_a_moment_where_all_do(self) -> None:
        """A retry line reads nothing but what is due: what is not due at any moment there is lost."""
        assert not Delivery.objects.open().filter(line__in=self.retry_lines.values(), due_at=None).exists()

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
        told = {
            (self.main_of[line_id], number) for line_id, number in LineEvent.objects.values_list("line_id", "sequence")
        }
        for line_id in self.lines.values():
            mine = [request for request in self.requests if self.main_of[request.line_id] == line_id]
            arrived = {request.sequence for request in mine if request.may_have_arrived}
            missing = {*range(1, self.last_number[line_id] + 1)} - arrived
            assert missing <= {number for line, number in told if line == line_id}, "gaps are told"
        unrecorded = Counter(request.line_id for request in self.requests if not request.is_recorded)
        assert unrecorded <= self.unclean_ends, "one a line for each unclean end"


@pytest.fixture
def policies(storage: None) -> list[RetryPolicy]:
    """Return policies that reach their ends soon: one that retries apart, and two that hold, then reject or suspend."""
    apart = dict.fromkeys(ACTIONS, Action.RETRY_APART)
    holding: dict[str, Any] = {"on_server_error": Action.END}
    return [
        retry_policy(**apart, most_retries=2, in_the_end=InTheEnd.FAIL),
        retry_policy(**holding, most_retries=1, in_the_end=InTheEnd.REJECT),
        retry_policy(**holding, most_retries=0, in_the_end=InTheEnd.SUSPEND),
    ]


@pytest.mark.behaviour("1.6", "2.10", "2.13", "4.10", "4.11", "5.3", "5.5", "5.6", "5.8", "11.3")
def test_anything_goes(policies: list[RetryPolicy], monkeypatch: pytest.MonkeyPatch) -> None:
    database = Database()
    monkeypatch.setattr(batches, "settle", database)
    try_anything(partial(Broker, policies=policies), database)
