"""Deliveries: messages on their way to a subscription, with their attempts; and how many ended in each minute."""

import datetime as dt
from typing import Final, Self

from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models import Q
from django.db.models.functions import Now

from delivery.models.lines import Line, QueueGroup
from delivery.models.messages import Message
from delivery.statuses import ATTEMPT_ID_PREFIX, DELIVERY_ID_PREFIX, FINAL, DeliveryStatus, WaitsFor
from subscriptions.models import DeliveryMode, EventType, Subscriber, Subscription

OPEN_SHELF: Final = dt.date(9999, 12, 31)
"""Where unfinished deliveries stand; a date that PostgreSQL, psycopg and Python can all hold."""


def standing(status: str) -> Q:
    """Return the condition for deliveries with this status, of which a fetched one that timed out is PENDING (9.2).

    As `Delivery.status_at` says it of one.
    """
    match status:
        case DeliveryStatus.PENDING:
            return Q(status=status) | Q(status=DeliveryStatus.IN_FLIGHT, fetched_until__lte=Now())
        case DeliveryStatus.IN_FLIGHT:
            return Q(status=status) & (Q(fetched_until=None) | Q(fetched_until__gt=Now()))
    return Q(status=status)


class DeliveryQuerySet(models.QuerySet["Delivery"]):
    """Deliveries, by shelf and by what they wait for."""

    def open(self) -> Self:
        """Keep the unfinished, on the open shelf."""
        return self.filter(closed_on=OPEN_SHELF)

    def final(self) -> Self:
        """Keep the finished, filed under the day they ended."""
        return self.filter(closed_on__lt=OPEN_SHELF)

    def oldest_first(self) -> Self:
        """Sort by id, the order of publishing."""
        return self.order_by("id")


class Delivery(models.Model):
    """One message for one subscription, or a reply for the address it goes to, and where it stands.

    Without constraints that only repeat its types: the server sets each up again for every statement.

    Partitioned by `closed_on`: unfinished rows on the open shelf, finished ones under the day they ended. Only what
    settles, cancels or frees changes the status; the database refuses a status on the wrong shelf.
    """

    message = models.ForeignKey(Message, models.DO_NOTHING, null=True, db_constraint=False, db_index=False)
    line = models.ForeignKey(Line, models.DO_NOTHING, null=True, db_constraint=False, db_index=False)
    subscription = models.ForeignKey(Subscription, models.DO_NOTHING, null=True, db_constraint=False, db_index=False)
    """None: the reply to a callback."""
    group = models.ForeignKey(QueueGroup, models.DO_NOTHING, null=True, db_constraint=False, db_index=False)
    """Of which QUEUE group; that is gone once it has ended."""
    status = models.CharField(max_length=16, choices=DeliveryStatus, default=DeliveryStatus.PENDING)
    size = models.IntegerField()
    attempts = models.IntegerField(default=0, db_default=0)
    times_deferred = models.IntegerField(default=0, db_default=0)
    waits_for = models.CharField(
        max_length=12, choices=WaitsFor, default=WaitsFor.TURN, db_default=WaitsFor.TURN, editable=False
    )
    """Never its turn in a retry line."""
    due_at = models.DateTimeField(null=True, blank=True)
    """When it is tried again; None unless it waits for that, which the database checks."""
    sequence = models.BigIntegerField(null=True, blank=True)
    """Its number in its subscriber's line, given when it is first sent, never changed (contract 4.10)."""
    uncertain = models.BooleanField(default=False, db_default=False)
    """Whether the outcome of an earlier request is unknown (contract 4.11)."""
    crash_count = models.SmallIntegerField(default=0, db_default=0, editable=False)
    """How many workers in a row lost their lease during its request, without an outcome between (contract 4.19)."""
    unreceived = models.BooleanField(default=False, db_default=False)
    """Whether it has been tried and never been answered: nobody is known to have received its number (4.10, 5.3)."""
    fetches = models.IntegerField(default=0, db_default=0)
    """How often a client has fetched it."""
    fetch_id = models.BigIntegerField(null=True, editable=False)
    """What its newest fetch has, and no other: receipts name it (contract 9.4)."""
    fetched_until = models.DateTimeField(null=True, blank=True)
    """When its fetch times out; None: it was not fetched, or was acknowledged or returned (contract 9.2)."""
    fetched_seconds = models.IntegerField(null=True, editable=False)
    """How long it was fetched or extended for: `fetched_until` lies no further ahead (contract 5.9)."""
    cancel_requested = models.BooleanField(default=False, db_default=False)
    """Whether it ends as CANCELLED unless the answer to its request in flight ends it otherwise."""
    expires_at = models.DateTimeField(null=True, blank=True)
    """When its time to live ends (contract 2.10), or the days of a reply (6.8)."""
    not_before = models.DateTimeField(null=True, blank=True)
    """Before when it is not sent (contract 2.13)."""
    resubmit_of = models.BigIntegerField(null=True, blank=True)
    """The delivery that this one repeats, by hand or in a replay (contract 5.8)."""
    replay_id = models.BigIntegerField(null=True, blank=True)
    """The replay or backfill that made it."""
    ordering_key = models.TextField(null=True, blank=True, db_collation="C")  # noqa: DJ001 - None: see `keyless_until`
    """Within which its order counts if the subscriber is KEYED (contract 4.18); empty: the message has none."""
    reason = models.TextField(blank=True, default="", db_default="")
    created_at = models.DateTimeField(db_default=Now())
    finished_at = models.DateTimeField(null=True, blank=True)
    closed_on = models.DateField(default=OPEN_SHELF, db_default=OPEN_SHELF, editable=False)

    objects = DeliveryQuerySet.as_manager()

    class Meta:
        verbose_name_plural = "deliveries"

    def __str__(self) -> str:
        return f"{DELIVERY_ID_PREFIX}{self.pk}"

    def status_at(self, now: dt.datetime) -> str:
        """Return its status: PENDING if its fetch has timed out, recorded or not (contract 9.2)."""
        is_timed_out = self.fetched_until and self.fetched_until <= now
        return DeliveryStatus.PENDING if is_timed_out else self.status

    @property
    def next_try_at(self) -> dt.datetime | None:
        """When it is tried, if it was delayed or deferred and has not ended; of a reply, when its line tries again.

        None of what is fetched: that is there at any time, unless it was delayed. That of a QUEUE group is its group's.
        """
        if self.status in FINAL:
            return None
        if self.waits_for == WaitsFor.START:
            return self.not_before
        if self.subscription and self.subscription.delivery_mode == DeliveryMode.PULL:
            return None
        if self.subscription_id is None:
            return self.hold.due_at if hasattr(self, "hold") else None
        return self.group.due_at if self.group else self.due_at


class Attempt(models.Model):
    """One request for one delivery and what came back; append-only, partitioned by `id` as messages are."""

    delivery = models.ForeignKey(Delivery, models.DO_NOTHING, null=True, db_constraint=False, db_index=False)
    number = models.IntegerField()
    started_at = models.DateTimeField()
    duration_ms = models.IntegerField()
    status_code = models.IntegerField(null=True)
    """None: no complete answer; `error` says why."""
    error = models.TextField(blank=True, default="")
    answer_headers = models.BinaryField(default=b"")
    """Status line and headers as received, cut at 2 KiB: bytes, since endpoints send anything."""
    answer_excerpt = models.BinaryField(default=b"")
    """The answer body's first KiB, as bytes."""
    sent = models.BinaryField(null=True)
    """What cannot be told of the request from its message and configuration, as `sent_record` made it (JSON)."""
    meaning = models.CharField(max_length=10, null=True)  # noqa: DJ001 - None: what TeamForge would take it for
    """What followed from it under its subscription's retry policy (`RetryAction`, contract 5.1)."""

    def __str__(self) -> str:
        return f"{ATTEMPT_ID_PREFIX}{self.pk}"

    @property
    def is_by_hand(self) -> bool:
        """Whether somebody had this very request sent: the first of a delivery that was resubmitted (contract 5.2)."""
        delivery = self.delivery
        return bool(delivery and delivery.resubmit_of and not delivery.replay_id) and self.number == 1


class DeadLetter(Delivery):
    """A delivery that ended without success and that somebody might want to send again (contract 5.3, 5.8)."""

    class Meta:
        proxy = True
        verbose_name = "dead letter"


class Mailbox(Subscriber):
    """What a subscriber fetches itself: its PULL subscriptions together (contract 9.1)."""

    class Meta:
        proxy = True
        verbose_name_plural = "mailboxes"


class StorageDay(models.Model):
    """One day that messages, finished deliveries and attempts are filed under."""

    day = models.DateField(primary_key=True)
    lived = models.BooleanField(default=False, db_default=False)
    """Whether the broker ran on it; else it was only opened ahead."""

    dropped_at = models.DateTimeField(null=True)
    """When retention dropped it, and last looked how much of what it kept is needed still.

    The day stays listed while something unfinished needs messages of it.
    """

    summarized_at = models.DateTimeField(null=True)
    """When all that is filed under it was summarized last; retention may wait for it."""

    kept_on = models.DateField(null=True)
    """On which day it was last said that it is past its time, and kept until it is summarized."""

    def __str__(self) -> str:
        return self.day.isoformat()


class ClockJump(models.Model):
    """The last jump ahead of the database's clock that a process saw; at most one row (contract 11.7).

    By 0 s when the database was restored or failed over: nobody knows by how much its clock differs from before.
    """

    id = models.SmallIntegerField(primary_key=True)
    seconds = models.FloatField()
    believed_at = models.DateTimeField()
    """From when on it is believed, by the clock after the jump."""


class EndedInMinute(models.Model):
    """How many deliveries ended in one minute, and how long they took; the columns of both kinds of row.

    The words are those of the hourly summaries, which count the same: `eligible` are all but the neutral ones.
    """

    deliveries = models.IntegerField()
    delivered = models.IntegerField()
    eligible = models.IntegerField()
    buckets = ArrayField(models.SmallIntegerField())
    """The histogram of the time from published to delivered, without mailboxes: its buckets, those of the summaries."""
    bucket_counts = ArrayField(models.IntegerField())
    """How many took as long, for each of `buckets`."""

    class Meta:
        abstract = True


class MinuteTotal(EndedInMinute):
    """What ended in one minute; the newest row is the last minute that was counted."""

    minute = models.DateTimeField(primary_key=True)
    due = models.IntegerField(null=True)
    """How many deliveries were due when it was over; None if it was counted later."""


class MinuteCount(EndedInMinute):
    """What of one subscriber and event type ended in one minute; replies to callbacks have no subscriber."""

    minute = models.DateTimeField(db_index=True)
    subscriber = models.ForeignKey(Subscriber, models.DO_NOTHING, null=True, db_constraint=False, db_index=False)
    event_type = models.ForeignKey(EventType, models.DO_NOTHING, null=True, db_constraint=False, db_index=False)

    class Meta:
        indexes = [models.Index(name="minute_count_subscriber", fields=["subscriber", "minute"])]
