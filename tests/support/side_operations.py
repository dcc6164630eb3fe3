"""Operations beside sending, for stateful tests: pauses, delays, rates, replays, retry policies, suspensions."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, NamedTuple

from django.db.models.functions import Now
from django.utils import timezone
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, rule

from delivery.dispatch.sweep import begin_delayed
from delivery.maintenance.expiry import expire_overdue
from delivery.models import Delivery, Lane, Line, Pace
from delivery.outcomes import Answered, Decision, Unreachable
from delivery.pause import pause, resume
from delivery.publish.publish import publish_terms
from delivery.replay.eligibility import RESUBMITTABLE
from delivery.replay.resubmit import resubmit
from delivery.retry import TEAMFORGE_POLICY, CompiledRetryPolicy, History, judge, policy_of
from delivery.statuses import DeliveryStatus
from subscriptions.models import RetryPolicy, Status, Subscriber, Subscription
from subscriptions.models.subscribers import Processing
from subscriptions.models.subscriptions import PausedBy
from subscriptions.retry_policies import ACTIONS, Action, OnExhausted
from tests.support.broker import activate, lines_with_due_work, probe
from tests.support.database import another_connection
from tests.support.stateful_deliveries import StatefulDeliveries, answers, subscription_numbers, worker_numbers
from tests.support.stepped_worker import FailingDatabase, Request, SteppedWorker

HOUR = timedelta(hours=1)
SLOW_RATE = 0.001
"""Per second: a limit so low that the next slot is never reached unless time is made to pass."""
EXPIRED = DeliveryStatus.EXPIRED.value
message_counts = st.integers(1, 4)

DAY_SECONDS = 86_400.0
LOCK_SUBSCRIPTION = "SELECT FROM subscriptions_subscription WHERE id = %s FOR NO KEY UPDATE"
"""What an edit holds until it is committed."""
RETRY_LINE_POLICY = dict.fromkeys(ACTIONS, Action.RETRY_LANE)
HOLDING_POLICY = {"on_server_error": Action.END}
DEFERRING_POLICY = {"on_server_error": Action.DEFER, "on_throttled": Action.DEFER, "initial_delay_seconds": 2.0}


failed_answers = st.sampled_from([503, 503, 500, 404, "refused", "cut"])
SIDE_EVENTS = ("nothing", "lock", "resume", "repair", "pause", "follow", "edit", "probe")
"""What may happen to a subscription between a request and its answer; "lock": an edit locks its row."""
side_events = st.sampled_from(SIDE_EVENTS)


class SideOperations(StatefulDeliveries):
    """Notes since when a subscription is sent, and a delivery to be had."""

    subscribers: list[Subscriber]

    def __init__(self, database: FailingDatabase) -> None:
        super().__init__(database)
        self.now = 0
        """Counts what happens."""
        self.inactive_at: defaultdict[tuple[str, int], int] = defaultdict(lambda: -1)
        """When a subscription or subscriber was last inactive, or paused."""
        self.begun_at: defaultdict[int, int] = defaultdict(lambda: -1)
        """When a delivery that was delayed began to be due."""
        self.slots_used: set[int] = set()
        """Subscriptions with a rate limit that have been sent since time last passed."""

    @invariant()
    def count(self) -> None:
        self.now += 1

    # --- what can happen -------------------------------------------------------------------------------

    @rule(at=subscription_numbers)
    def pause(self, at: int) -> None:
        pause([self.subscriptions[at].pk], reason="moving house")

    @rule(at=subscription_numbers)
    def resume(self, at: int) -> None:
        self.goes_on(self.subscriptions[at])
        resume([self.subscriptions[at].pk])

    @rule(at=subscription_numbers)
    def switch_subscriber(self, at: int) -> None:
        self.switch_one(Subscriber.objects.get(pk=self.subscriptions[at].subscriber_id))

    @rule(at=subscription_numbers, count=message_counts)
    def publish_delayed(self, at: int, count: int) -> None:
        self.publish_to(self.subscriptions[at].event_type, count, not_before=timezone.now() + HOUR)

    @rule()
    def begin(self) -> None:
        delayed = Delivery.objects.open().filter(waits_for="START")
        ids = [*delayed.values_list("pk", flat=True)]
        delayed.update(not_before=Now())
        assert begin_delayed() == len(ids)
        self.begun_at |= dict.fromkeys(ids, self.now)

    @rule(at=subscription_numbers, count=message_counts)
    def publish_to_be_sent_in_time(self, at: int, count: int) -> None:
        self.publish_to(self.subscriptions[at].event_type, count, ttl=3600.0)

    @rule()
    def be_too_late(self) -> None:
        Delivery.objects.open().filter(expires_at__isnull=False).update(expires_at=Now() - HOUR)

    @rule()
    def expire(self) -> None:
        late = Delivery.objects.open().filter(expires_at__lte=Now()).exclude(status=DeliveryStatus.IN_FLIGHT)
        ids = [*late.values_list("pk", flat=True)]
        assert expire_overdue() == len(ids)
        self.ended |= dict.fromkeys(ids, EXPIRED)

    @rule(at=subscription_numbers)
    def resubmit(self, at: int) -> None:
        one = Subscription.objects.select_related("subscriber").get(pk=self.subscriptions[at].pk)
        dead = Delivery.objects.final().filter(subscription=one, status__in=RESUBMITTABLE).order_by("-pk").first()
        if dead and one.status == one.subscriber.status == Status.ACTIVE:
            new_id = resubmit(dead.pk, publish_terms(), edit=None, max_bytes=1_000)
            self.published[new_id] = Delivery.objects.open().get(pk=new_id)

    @rule(at=subscription_numbers, concurrency=st.integers(1, 3))
    def send_several(self, at: int, concurrency: int) -> None:
        """Let a subscriber be sent several at a time, or one after the other again."""
        processing = Processing.SERIAL if concurrency == 1 else Processing.CONCURRENT
        mine = Subscriber.objects.filter(pk=self.subscriptions[at].subscriber_id)
        mine.update(processing=processing, concurrency=concurrency)

    @rule(at=subscription_numbers, rate_limit=st.sampled_from([None, SLOW_RATE]))
    def limit(self, at: int, rate_limit: float | None) -> None:
        one = self.subscriptions[at]
        Subscription.objects.filter(pk=one.pk).update(rate_limit=rate_limit)
        self.slots_used.discard(one.pk)

    @rule()
    def pass_time(self) -> None:
        super().pass_time()
        Pace.objects.update(last_at=None)
        self.slots_used.clear()
        for worker in self.workers:
            worker.pass_time()

    # --- how it happens --------------------------------------------------------------------------------

    def check_rate(self, request: Request) -> None:
        """Check that a subscription with a rate limit is sent at most one delivery in a slot."""
        one = Subscription.objects.get(pk=request.destination.subscription_id)
        assert not one.rate_limit or one.pk not in self.slots_used, "1.4: one in a slot"
        self.slots_used |= {one.pk} if one.rate_limit else set()

    def goes_on(self, one: Subscription | Subscriber) -> None:
        """Note that what may have been inactive or paused is sent from now on."""
        self.inactive_at[type(one).__name__, one.pk] = self.now

    def activate(self, one: Subscription | Subscriber) -> None:
        self.goes_on(one)
        activate(one)

    def could_be_sent(self, delivery_id: int, read_at: int) -> bool:
        """Return whether a delivery was to be had when the page was read, and still is."""
        row = Delivery.objects.open().filter(pk=delivery_id).first()
        return bool(row and self.is_active(row) and self.was_active(row, read_at) and self.is_in_time(row, read_at))

    def is_active(self, row: Delivery) -> bool:
        one = Subscription.objects.select_related("subscriber").get(pk=row.subscription_id or 0)
        return one.is_sending and one.subscriber.status == Status.ACTIVE

    def was_active(self, row: Delivery, since: int) -> bool:
        one = Subscription.objects.get(pk=row.subscription_id or 0)
        both = ("Subscription", one.pk), ("Subscriber", one.subscriber_id)
        return all(self.inactive_at[thing] < since for thing in both)

    def is_in_time(self, row: Delivery, since: int) -> bool:
        """Return whether it had begun to be due, and has not expired."""
        is_late = row.expires_at is not None and row.expires_at <= timezone.now()
        return not is_late and row.waits_for != "START" and self.begun_at[row.pk] < since

    # --- how it ends -----------------------------------------------------------------------------------

    def activate_all(self) -> None:
        things: list[Subscription | Subscriber] = [*self.subscriptions, *self.subscribers]
        for one in things:
            self.activate(one)
        Subscription.objects.update(rate_limit=None)

    def finish_round(self) -> None:
        self.now += 1
        resume([one.pk for one in self.subscriptions])
        self.begin()
        self.expire()
        super().finish_round()


POLICY_TERMS: Sequence[dict[str, Any]] = [
    RETRY_LINE_POLICY | {"max_retries": 2, "on_exhausted": OnExhausted.FAIL},
    HOLDING_POLICY | {"max_retries": 1, "on_exhausted": OnExhausted.REJECT},
    HOLDING_POLICY | {"max_retries": 0, "on_exhausted": OnExhausted.SUSPEND},
    RETRY_LINE_POLICY | {"max_retries": 1, "on_exhausted": OnExhausted.SUSPEND},
    DEFERRING_POLICY | {"max_retries": 2, "on_exhausted": OnExhausted.FAIL},
]
"""Policies that reach their ends soon; none is probed unless it is asked for."""


policy_numbers = st.integers(0, len(POLICY_TERMS))
"""Of a policy; 0: the default, TeamForge."""


class SubscriptionState(NamedTuple):
    """How a subscription stood at some moment."""

    policy: CompiledRetryPolicy
    config_version: int
    paused_by: str
    half_open: bool
    is_sending: bool


class PolicyOperations(SideOperations):
    """Three subscriptions with a policy each; judges by the one that was in force when a request left (4.15)."""

    def __init__(self, database: FailingDatabase, policies: list[RetryPolicy]) -> None:
        super().__init__(database)
        self.policies = policies
        self.at_start: dict[Request, SubscriptionState] = {}
        self.before: dict[int, SubscriptionState] = {}
        """By subscription, as the round found them that is settled."""
        self.decisions: dict[Request, Decision] = {}
        self.tried: set[int] = set()
        """Suspended subscriptions whose last trial has had its outcome."""
        self.locked = 0
        """The subscription that another connection has locked."""

    # --- what can happen -------------------------------------------------------------------------------

    @initialize(chosen=st.permutations([4, 1, 3, 5, 2, 0]))
    def follow(self, chosen: list[int]) -> None:
        """Let each subscription follow a policy of its own."""
        for policy in self.policies:
            policy.save()
        for at, number in zip(range(len(self.subscriptions)), chosen, strict=False):
            self.follow_another(at, number)

    @rule(at=subscription_numbers, number=policy_numbers)
    def follow_another(self, at: int, number: int) -> None:
        policy = self.policies[number - 1] if number else None
        Subscription.objects.filter(pk=self.subscriptions[at].pk).update(retry_policy=policy)

    @rule(number=st.integers(1, len(POLICY_TERMS)), max_retries=st.integers(0, 3))
    def edit_policy(self, number: int, max_retries: int) -> None:
        RetryPolicy.objects.filter(pk=self.policies[number - 1].pk).update(max_retries=max_retries)

    @rule(
        at=subscription_numbers,
        worker=worker_numbers,
        results=st.lists(answers, min_size=2, max_size=8),
        pauses=st.booleans(),
    )
    def publish_and_answer(self, at: int, worker: int, results: list[int | str], pauses: bool) -> None:
        """Make progress: probe what is suspended, answer all requests, and end every pause."""
        self.probe(at)
        self.publish_to(self.subscriptions[at].event_type, 2)
        for result in results:
            self.pass_time()
            self.take(self.workers[worker], lines_with_due_work())
            if pauses and result == results[-1]:
                self.pause(at)
            self.answer_of(self.workers[worker], 0, result)

    @rule(at=subscription_numbers)
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

    @rule(
        at=subscription_numbers,
        worker=worker_numbers,
        result=failed_answers,
        meanwhile=st.lists(side_events, min_size=2, max_size=5),
    )
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
        requests = worker.wire.in_flight
        mine = [place for place, one in enumerate(requests) if one.destination.subscription_id == one_id]
        if mine and is_locked and not self.database.is_about_to_fail:
            self.answer_amid_an_edit(one_id, worker, mine[0], result)
        elif mine:
            self.answer_of(worker, mine[0], result)

    def answer_amid_an_edit(self, one_id: int, worker: SteppedWorker, place: int, result: int | str) -> None:
        """Answer while somebody has the subscription locked, who is not waited for."""
        answered = worker.wire.in_flight[place]
        with another_connection() as other, other.transaction():
            other.execute(LOCK_SUBSCRIPTION, [one_id])
            self.locked = one_id
            self.answer_of(worker, place, result)
        self.locked = 0
        self.check_patient(answered)

    def in_force(self) -> dict[int, SubscriptionState]:
        """Return how all subscriptions stand now."""
        all_of_them = Subscription.objects.select_related("subscriber", "retry_policy")
        return {one.pk: state_of(one) for one in all_of_them.filter(pk__in=[each.pk for each in self.subscriptions])}

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
        assert not start.half_open or not self.in_retry_line(request), "5.6: a trial is the main line's alone"
        self.at_start[request] = start

    def in_retry_line(self, request: Request) -> bool:
        return Line.objects.get(pk=request.line_id).lane == Lane.RETRY

    def decide(self, request: Request, attempts: int) -> Decision:
        """Return what the policy in force when a request left makes of its outcome."""
        result, start = request.result, self.at_start[request]
        outcome = Unreachable(result, result != "refused") if isinstance(result, str) else Answered(result)
        history = History(attempts, 0, 0, in_retry_line=self.in_retry_line(request), half_open=start.half_open)
        self.decisions[request] = judge(outcome, start.policy, history, chance=0.0).decision
        return self.decisions[request]

    # --- what must hold --------------------------------------------------------------------------------

    def check_begun(self, one: Subscription) -> None:
        """Check that what is suspended is tried if anything can be, and goes on if nothing is left."""
        mine = Delivery.objects.open().filter(subscription=one)
        if mine.filter(waits_for="TURN").exists():
            assert one.half_open, "5.6: tried at its interval"
        elif not mine.filter(line__lane=Lane.MAIN).exists():
            assert not one.paused_since, "5.6: what waits apart does not wait for ever"

    def check_patient(self, answered: Request) -> None:
        """Check that what should have been suspended is not tried again at once."""
        suspends = self.decisions.get(answered) is Decision.SUSPEND and not self.in_retry_line(answered)
        at_once = [one for worker in self.workers for one in worker.wire.in_flight if one.line_id == answered.line_id]
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
            is_old = was.paused_by == "" and was.config_version != start.config_version
            suspends = not is_old and was.paused_by in ("", PausedBy.POLICY)
            assert suspends == (now.paused_by == PausedBy.POLICY and not now.half_open), "5.6, 4.15"
        elif start.half_open:
            assert not now.half_open, "5.6: any other answer shows that the endpoint works again"


def state_of(one: Subscription) -> SubscriptionState:
    """Return how a subscription stands."""
    policy = policy_of(one.retry_policy.terms) if one.retry_policy else TEAMFORGE_POLICY
    return SubscriptionState(policy, one.version + one.subscriber.version, one.paused_by, one.half_open, one.is_sending)
