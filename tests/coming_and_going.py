"""What can happen to TOPIC deliveries beside being sent: paused, delayed, limited, too late, and sent again."""

from collections import defaultdict
from datetime import timedelta

from django.db.models.functions import Now
from django.utils import timezone
from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule

from delivery.dispatch.sweep import begin_delayed
from delivery.maintenance.expiry import expire_overdue
from delivery.models import UNTIL_DUE, Delivery, Pace
from delivery.pause import pause, resume
from delivery.replay.eligibility import RESUBMITTABLE
from delivery.replay.resubmit import resubmit
from delivery.statuses import DeliveryStatus
from subscriptions.models import Status, Subscriber, Subscription
from subscriptions.models.subscribers import Processing
from tests.anything_goes import AnythingGoes, which
from tests.driving import SENDERS, activate
from tests.stepping import Database, Request

HOUR = timedelta(hours=1)
SELDOM = 0.001
"""Per second: a limit so low that the next slot is never reached unless time is made to pass."""
EXPIRED = DeliveryStatus.EXPIRED.value
counts = st.integers(1, 4)


class ComingAndGoing(AnythingGoes):
    """Notes since when a subscription is sent, and a delivery to be had."""

    subscribers: list[Subscriber]

    def __init__(self, database: Database) -> None:
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

    @rule(at=which)
    def pause(self, at: int) -> None:
        pause([self.subscriptions[at].pk], reason="moving house")

    @rule(at=which)
    def resume(self, at: int) -> None:
        self.goes_on(self.subscriptions[at])
        resume([self.subscriptions[at].pk])

    @rule(at=which)
    def switch_subscriber(self, at: int) -> None:
        self.switch_one(Subscriber.objects.get(pk=self.subscriptions[at].subscriber_id))

    @rule(at=which, count=counts)
    def publish_delayed(self, at: int, count: int) -> None:
        self.publish_to(self.subscriptions[at].event_type, count, not_before=timezone.now() + HOUR)

    @rule()
    def begin(self) -> None:
        delayed = Delivery.objects.open().filter(due_at=UNTIL_DUE)
        ids = [*delayed.values_list("pk", flat=True)]
        delayed.update(not_before=Now())
        assert begin_delayed() == len(ids)
        self.begun_at |= dict.fromkeys(ids, self.now)

    @rule(at=which, count=counts)
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

    @rule(at=which)
    def resubmit(self, at: int) -> None:
        one = Subscription.objects.select_related("subscriber").get(pk=self.subscriptions[at].pk)
        dead = Delivery.objects.final().filter(subscription=one, status__in=RESUBMITTABLE).order_by("-pk").first()
        if dead and one.status == one.subscriber.status == Status.ACTIVE:
            new_id = resubmit(dead.pk, edit=None, most_bytes=1_000, senders=SENDERS)
            self.published[new_id] = Delivery.objects.open().get(pk=new_id)

    @rule(at=which, concurrency=st.integers(1, 3))
    def send_several(self, at: int, concurrency: int) -> None:
        """Let a subscriber be sent several at a time, or one after the other again."""
        processing = Processing.SERIAL if concurrency == 1 else Processing.CONCURRENT
        mine = Subscriber.objects.filter(pk=self.subscriptions[at].subscriber_id)
        mine.update(processing=processing, concurrency=concurrency)

    @rule(at=which, rate_limit=st.sampled_from([None, SELDOM]))
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
        """Check that what has a rate limit is sent once in a slot, and that nobody has it sent before the next."""
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
        """Tell whether a delivery was to be had when the page was read, and still is."""
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
        """Tell whether it had begun to be due, and has not expired."""
        is_late = row.expires_at is not None and row.expires_at <= timezone.now()
        return not is_late and row.due_at != UNTIL_DUE and self.begun_at[row.pk] < since

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
