"""Retry policies that are followed, exchanged and edited, suspensions and trials, amid whatever else happens."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import pytest
from django.db.models.functions import Now
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule

from delivery.dispatch.sweep import lines_with_due_work
from delivery.models import Delivery, Lane, Line
from delivery.outcomes import Answered, Decision, Unreachable
from delivery.retry import TEAMFORGE_POLICY, History, judge, policy_of
from delivery.retry import RetryPolicy as Policy
from subscriptions.models import RetryPolicy, Status, Subscription
from subscriptions.models.subscriptions import PausedBy
from subscriptions.retry_policies import ACTIONS, Action, OnExhausted
from tests.anything_goes import answers, which, workers
from tests.coming_and_going import ComingAndGoing
from tests.driving import outside, probe
from tests.factories import retry_policy
from tests.stepping import Database, Request, SteppedWorker

DAY = 86_400.0
LOCK = "SELECT FROM subscriptions_subscription WHERE id = %s FOR NO KEY UPDATE"
"""What an edit holds until it is committed."""
APART = dict.fromkeys(ACTIONS, Action.RETRY_LANE)
HOLDING = {"on_server_error": Action.END}
ASIDE = {"on_server_error": Action.DEFER, "on_throttled": Action.DEFER, "initial_delay_seconds": 2.0}
TERMS: Sequence[dict[str, Any]] = [
    APART | {"max_retries": 2, "on_exhausted": OnExhausted.FAIL},
    HOLDING | {"max_retries": 1, "on_exhausted": OnExhausted.REJECT},
    HOLDING | {"max_retries": 0, "on_exhausted": OnExhausted.SUSPEND},
    APART | {"max_retries": 1, "on_exhausted": OnExhausted.SUSPEND},
    ASIDE | {"max_retries": 2, "on_exhausted": OnExhausted.FAIL},
]
"""Policies that reach their ends soon; none is probed unless it is asked for."""
failures = st.sampled_from([503, 503, 500, 404, "refused", "cut"])
EVENTS = ("nothing", "lock", "resume", "repair", "pause", "follow", "edit", "probe")
"""What may happen to a subscription between a request and its answer; "lock": somebody edits it."""
events = st.sampled_from(EVENTS)
numbers = st.integers(0, len(TERMS))
"""Of a policy; 0 is none, and so TeamForge."""


@pytest.fixture
def policies(storage: None) -> list[RetryPolicy]:
    """Return one with each of the terms."""
    return [retry_policy(**terms, probe_seconds=DAY) for terms in TERMS]


class InForce(NamedTuple):
    """How a subscription stood at some moment."""

    policy: Policy
    stamp: int
    paused_by: str
    half_open: bool
    is_sending: bool


class PoliciesInForce(ComingAndGoing):
    """Three subscriptions with a policy each; judges by the one that was in force when a request left (4.15)."""

    def __init__(self, database: Database, policies: list[RetryPolicy]) -> None:
        super().__init__(database)
        self.policies = policies
        self.at_start: dict[Request, InForce] = {}
        self.before: dict[int, InForce] = {}
        """By subscription, as the round found them that is settled."""
        self.decisions: dict[Request, Decision] = {}
        self.tried: set[int] = set()
        """Suspended subscriptions whose last trial has had its outcome."""
        self.locked = 0
        """The subscription that somebody else has locked."""

    # --- what can happen -------------------------------------------------------------------------------

    @initialize(chosen=st.permutations([4, 1, 3, 5, 2, 0]))
    def follow(self, chosen: list[int]) -> None:
        """Let each subscription follow a policy of its own."""
        for policy in self.policies:
            policy.save()
        for at, number in zip(range(len(self.subscriptions)), chosen, strict=False):
            self.follow_another(at, number)

    @rule(at=which, number=numbers)
    def follow_another(self, at: int, number: int) -> None:
        policy = self.policies[number - 1] if number else None
        Subscription.objects.filter(pk=self.subscriptions[at].pk).update(retry_policy=policy)

    @rule(number=st.integers(1, len(TERMS)), max_retries=st.integers(0, 3))
    def edit_policy(self, number: int, max_retries: int) -> None:
        RetryPolicy.objects.filter(pk=self.policies[number - 1].pk).update(max_retries=max_retries)

    @rule(at=which, worker=workers, results=st.lists(answers, min_size=2, max_size=8), pauses=st.booleans())
    def publish_and_answer(self, at: int, worker: int, results: list[int | str], pauses: bool) -> None:
        """Get somewhere, whatever else happens: what is suspended is tried, all are answered, and no pause lasts."""
        self.probe(at)
        self.publish_to(self.subscriptions[at].event_type, 2)
        for result in results:
            self.pass_time()
            self.take(self.workers[worker], lines_with_due_work())
            if pauses and result == results[-1]:
                self.pause(at)
            self.answer_of(self.workers[worker], 0, result)

    @rule(at=which)
    def probe(self, at: int) -> None:
        """Let the next trial be due, and begin it if there is anything to try."""
        mine = Subscription.objects.select_related("subscriber").filter(pk=self.subscriptions[at].pk)
        self.goes_on(self.subscriptions[at])
        mine.filter(paused_by=PausedBy.POLICY).update(probe_due_at=Now())
        was = mine.get()
        probe()
        one = mine.get()
        if one.half_open and not was.half_open:
            self.tried.discard(one.pk)
        if was.paused_by == PausedBy.POLICY and one.status == one.subscriber.status == Status.ACTIVE:
            self.check_begun(one)

    @rule(at=which, worker=workers, result=failures, meanwhile=st.lists(events, min_size=2, max_size=5))
    def wear_out(self, at: int, worker: int, result: int | str, meanwhile: list[str]) -> None:
        """Let what one subscription gets fail again and again; something happens to it before each answer."""
        happens: dict[str, Callable[[], None]] = {
            "pause": lambda: self.pause(at),
            "resume": lambda: self.resume(at),
            "repair": lambda: self.change(at),
            "follow": lambda: self.follow_another(at, len(meanwhile)),
            "edit": lambda: self.edit_policy(len(meanwhile), 1),
            "probe": lambda: self.probe(at),
        }
        self.publish_to(self.subscriptions[at].event_type, 1)
        for event in meanwhile:
            self.probe(at)
            self.pass_time()
            self.take(self.workers[worker], lines_with_due_work())
            happens.get(event, lambda: None)()
            self.answer_one_of(at, self.workers[worker], result, is_locked=event == "lock")

    # --- how it happens --------------------------------------------------------------------------------

    def answer_one_of(self, at: int, worker: SteppedWorker, result: int | str, *, is_locked: bool) -> None:
        """Answer the first request to a subscription, if there is any, while somebody has that locked, or nobody."""
        one_id = self.subscriptions[at].pk
        requests = worker.wire.under_way
        mine = [place for place, one in enumerate(requests) if one.destination.subscription_id == one_id]
        if mine and is_locked and not self.database.is_about_to_fail:
            self.answer_amid_an_edit(one_id, worker, mine[0], result)
        elif mine:
            self.answer_of(worker, mine[0], result)

    def answer_amid_an_edit(self, one_id: int, worker: SteppedWorker, place: int, result: int | str) -> None:
        """Answer while somebody has the subscription locked, who is not waited for."""
        answered = worker.wire.under_way[place]
        with outside() as other:
            other.execute(LOCK, [one_id])
            self.locked = one_id
            self.answer_of(worker, place, result)
        self.locked = 0
        self.check_patient(answered)

    def in_force(self) -> dict[int, InForce]:
        """Return how all subscriptions stand now."""
        all_of_them = Subscription.objects.select_related("subscriber", "retry_policy")
        return {one.pk: standing(one) for one in all_of_them.filter(pk__in=[each.pk for each in self.subscriptions])}

    def on_settling(self) -> None:
        self.before = self.in_force()

    def on_settled(self) -> None:
        now = self.in_force()
        for one in self.subscriptions:
            if now[one.pk].is_sending and not self.before[one.pk].is_sending:
                self.goes_on(one)

    def on_request(self, request: Request) -> None:
        start = self.in_force()[request.destination.subscription_id]
        assert not start.half_open or request.destination.subscription_id not in self.tried, "5.6: once a probe"
        assert not start.half_open or not self.is_apart(request), "5.6: a trial is the main line's alone"
        self.at_start[request] = start

    def is_apart(self, request: Request) -> bool:
        return Line.objects.get(pk=request.line_id).lane == Lane.RETRY

    def decide(self, request: Request, attempts: int) -> Decision:
        """Return what the policy in force when a request left makes of its outcome."""
        result, start = request.result, self.at_start[request]
        outcome = Unreachable(result, result != "refused") if isinstance(result, str) else Answered(result)
        history = History(attempts, 0, 0, is_apart=self.is_apart(request), half_open=start.half_open)
        self.decisions[request] = judge(outcome, start.policy, history, chance=0.0).decision
        return self.decisions[request]

    # --- what must hold --------------------------------------------------------------------------------

    def check_begun(self, one: Subscription) -> None:
        """Check that what is suspended is tried if anything can be, and goes on if nothing is left."""
        mine = Delivery.objects.open().filter(subscription=one)
        if mine.filter(due_at=None).exists():
            assert one.half_open, "5.6: tried at its interval"
        elif not mine.filter(line__lane=Lane.MAIN).exists():
            assert not one.paused_since, "5.6: what waits apart does not wait for ever"

    def check_patient(self, answered: Request) -> None:
        """Check that what should have been suspended is not tried again at once."""
        suspends = self.decisions.get(answered) is Decision.SUSPEND and not self.is_apart(answered)
        at_once = [one for worker in self.workers for one in worker.wire.under_way if one.line_id == answered.line_id]
        assert not suspends or answered.delivery_id not in {one.delivery_id for one in at_once}, "5.6: at an interval"

    def check_pause(self, request: Request) -> None:
        """Check whether a subscription is paused, or goes on, as an outcome that leaves its delivery open has it."""
        one_id = request.destination.subscription_id
        start, was, now = self.at_start[request], self.before[one_id], self.in_force()[one_id]
        if one_id == self.locked:
            assert (now.paused_by, now.half_open) == (was.paused_by, was.half_open), (
                "who has it locked is not waited for"
            )
            return
        if start.half_open:
            self.tried.add(one_id)
        if self.decisions[request] is Decision.SUSPEND:
            is_old = was.paused_by == "" and was.stamp != start.stamp
            suspends = not is_old and was.paused_by in ("", PausedBy.POLICY)
            assert suspends == (now.paused_by == PausedBy.POLICY and not now.half_open), "5.6, 4.15"
        elif start.half_open:
            assert not now.half_open, "5.6: whatever else an endpoint answers is a sign of life"


def standing(one: Subscription) -> InForce:
    """Return how a subscription stands."""
    policy = policy_of(one.retry_policy.terms) if one.retry_policy else TEAMFORGE_POLICY
    return InForce(policy, one.version + one.subscriber.version, one.paused_by, one.half_open, one.is_sending)
