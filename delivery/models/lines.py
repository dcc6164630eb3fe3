"""Lines: ordered work of one owner, with holds, callbacks, QUEUE groups, rates, page notes and announcements."""

from typing import Final

from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models import Case, Q, Value, When
from django.db.models.functions import Cast, Concat, Now

from broker_project.core.encryption import CALLBACK_TOKEN, EncryptedColumn
from delivery.models.messages import Message
from delivery.statuses import GROUP_ID_PREFIX, WaitsFor
from subscriptions.models import EventType, Publisher, Subscriber, Subscription


class Lane(models.TextChoices):
    """What kind of work a line has, and so who its owner is."""

    MAIN = "main", "Topic"
    """A subscriber's deliveries in the order of publishing (contract 4.1)."""

    RETRY = "retry", "Retry"
    """Those of them that are tried again without holding up later ones, by when they are due (contract 5.3)."""

    QUEUE = "queue", "Queue"
    """The message groups of one QUEUE sender (contract 6.2)."""

    CALLBACK = "callback", "Callback"
    """The reply to one callback, on its way to the original URL (contract 6.8)."""


CELERY_QUEUE: Final = Case(
    When(lane=Lane.RETRY, then=Value("retry")),
    When(lane=Lane.QUEUE, then=Concat(Value("queue."), Cast("sender", models.TextField()))),
    When(lane=Lane.CALLBACK, then=Value("callbacks")),
    default=Value("topic"),
    output_field=models.TextField(),
)
OWNED: Final = (
    Q(lane__in=[Lane.MAIN, Lane.RETRY], subscriber__isnull=False, sender=None, callback=None)
    | Q(lane=Lane.QUEUE, subscriber=None, sender__isnull=False, callback=None)
    | Q(lane=Lane.CALLBACK, subscriber=None, sender=None, callback__isnull=False)
)


class Callback(models.Model):
    """One QUEUE group's address for a reply: given to its endpoints in place of the publisher's own (contract 6.7).

    Its token is looked up by its hash and stored encrypted, so that a repeated request has the same address (6.10).
    """

    group_id = models.BigIntegerField(unique=True)
    """The group it was made for; that is gone once it has ended."""
    message = models.ForeignKey(Message, models.DO_NOTHING, null=True, db_constraint=False, related_name="+")
    """What was published with the original address."""
    event_type = models.ForeignKey(EventType, models.DO_NOTHING, null=True, db_constraint=False, db_index=False)
    """The message's, as `publisher`: the callback may outlive it."""
    publisher = models.ForeignKey(Publisher, models.DO_NOTHING, null=True, db_constraint=False, db_index=False)
    url = models.TextField("URL", blank=True, default="", db_default="")
    """The original address; empty where that is another callback of ours: `parent`."""
    parent = models.ForeignKey("self", models.SET_NULL, null=True, db_index=False, related_name="+")
    """The callback that the reply is passed on to, inside (contract 6.9)."""
    depth = models.PositiveSmallIntegerField(default=1, db_default=1)
    """Its place in a chain of callbacks, from 1 on."""
    token_hash = models.BinaryField(max_length=32, unique=True)
    token_sealed = EncryptedColumn(purpose=CALLBACK_TOKEN, bound_to="token_hash")
    created_at = models.DateTimeField(db_default=Now())
    expires_at = models.DateTimeField(null=True)
    """Until when it may be replied to; once it has been, until when the reply is tried to be delivered.

    None while its group is open and nobody has replied: an endpoint may still get the job (contract 6.8).
    """
    reply = models.ForeignKey(
        Message, models.DO_NOTHING, null=True, db_constraint=False, db_index=False, related_name="+"
    )
    """The endpoint's result; None until it has been posted."""
    reply_fingerprint = models.BinaryField(max_length=32, null=True)
    """What makes two replies the same."""
    replied_at = models.DateTimeField(null=True)
    delivery_id = models.BigIntegerField("delivery ID", null=True)
    """The last delivery of the reply to `url`; None before the reply, and if it is passed on inside the broker."""

    class Meta:
        indexes = [
            models.Index(name="callback_expiry", fields=["expires_at", "id"]),
            models.Index(name="callback_publisher", fields=["publisher", "id"]),
            models.Index(name="callback_parent", fields=["parent"], condition=Q(parent__isnull=False)),
            models.Index(name="callback_of_reply", fields=["reply"], condition=Q(reply__isnull=False)),
        ]
        constraints = [
            models.CheckConstraint(name="callback_target", condition=Q(url="") | Q(parent=None)),
            models.CheckConstraint(
                name="callback_reply",
                condition=Q(reply=None, replied_at=None, reply_fingerprint=None)
                | Q(reply__isnull=False, replied_at__isnull=False, reply_fingerprint__isnull=False),
            ),
        ]

    def __str__(self) -> str:
        return f"callback {self.pk}"


class Line(models.Model):
    """One owner's ordered work: its worker (lease, epoch), its last number, and until when it rests.

    No form touches it. `lease_until` is null when the line was let go cleanly; a lease that has run out means its
    worker vanished with requests in flight.
    """

    lane = models.CharField(max_length=8, choices=Lane, default=Lane.MAIN, db_default=Lane.MAIN)
    subscriber = models.ForeignKey(Subscriber, models.CASCADE, null=True, db_index=False, related_name="lines")
    sender = models.PositiveSmallIntegerField(null=True)
    """Of a QUEUE sender: which of them, from 0 on."""
    callback = models.OneToOneField(Callback, models.CASCADE, null=True, related_name="line")
    queue = models.GeneratedField(expression=CELERY_QUEUE, output_field=models.TextField(), db_persist=True)
    """The Celery queue that its turns are tasks of."""
    epoch = models.BigIntegerField(default=0, db_default=0)
    """Raised at each claim; settles under an older one are fenced."""
    lease_until = models.DateTimeField(null=True)
    worker = models.CharField(max_length=255, default="", db_default="")
    """Who claimed it last."""
    last_sequence = models.BigIntegerField(default=0, db_default=0)
    due_at = models.DateTimeField(null=True)
    """Until when it rests although it has work; `Hold` says what it waits for otherwise."""
    deferred_next = models.BooleanField(default=False, db_default=False)
    """Whether it is the turn of the deferred ones, not of those never sent (contract 4.6)."""
    pause_announced_at = models.DateTimeField(null=True)
    """When it was announced that the line is held; None: it was not, or that it goes on was announced since (5.7)."""

    class Meta:
        constraints = [
            # With the epoch, so that dead versions of former ones are not passed; a trigger makes one of each lane.
            models.UniqueConstraint(name="line_lane", fields=["subscriber", "lane", "epoch"]),
            models.UniqueConstraint(name="line_sender", fields=["sender"]),
            models.CheckConstraint(name="line_owner", condition=OWNED),
        ]
        indexes = [
            models.Index(name="line_leased", fields=["lease_until"], condition=Q(lease_until__isnull=False)),
            models.Index(name="line_pauses", fields=["id"], condition=Q(pause_announced_at__isnull=False)),
        ]

    def __str__(self) -> str:
        return f"{self.owner} ({Lane(self.lane).label.lower()})"

    @property
    def run_by(self) -> str:
        """The worker that has it; empty: none has."""
        return self.worker if self.lease_until else ""

    @property
    def owner(self) -> str:
        """Whose work it is."""
        if self.lane == Lane.QUEUE:
            return f"queue sender {self.sender}"
        return f"callback {self.callback_id}" if self.lane == Lane.CALLBACK else str(self.subscriber)


class Hold(models.Model):
    """A delivery that must not be overtaken within its key: it goes first, when it is due (contract 4.7, 4.8, 4.12).

    Its endpoint failed, it waits for its rate limit, it was in flight at an unclean end, or it is a callback's reply.
    A hold whose delivery cannot be sent any more counts as due, and is deleted by the worker that finds that out.
    """

    delivery = models.OneToOneField(
        "Delivery", models.DO_NOTHING, primary_key=True, db_constraint=False, related_name="hold"
    )
    line = models.ForeignKey(Line, models.CASCADE, db_constraint=False, related_name="holds")
    due_at = models.DateTimeField(db_default=Now(), db_index=True)
    """When it is tried again."""
    since = models.DateTimeField(db_default=Now())
    """When it failed first, if it has."""
    failures = models.PositiveIntegerField(default=0, db_default=0)
    """Unsuccessful tries in a row; the pause grows with them."""
    reason = models.TextField(default="", db_default="")
    """Why it failed; empty: it has not failed."""
    config_version = models.BigIntegerField(default=0, db_default=0)
    """Of its destination when it was held; another one makes it due at once (contract 4.9)."""


class LineEventKind(models.TextChoices):
    """What a line's history tells."""

    NUMBER_UNCERTAIN = "NUMBER_UNCERTAIN"
    """A number that may never have been sent: its delivery ended after an unclean end (contract 4.10)."""

    RELEASED = "RELEASED"
    """What was HELD may be sent: later than what was published after it (contract 3.6, 4.10)."""

    PAUSED = "PAUSED"
    """One of its subscriptions is not sent for the time being: by hand, or its retries are used up (1.6, 5.6)."""

    RESUMED = "RESUMED"
    """That one is sent again."""

    DIVERTED = "DIVERTED"
    """The endpoint of one of its subscriptions hangs: the retry line tries it (contract 5.10)."""

    DIVERSION_ENDED = "DIVERSION_ENDED"
    """That one is sent by the main line again."""


class LineEvent(models.Model):
    """One thing worth knowing in a line's history; append-only.

    Without a constraint on the line, whose check would wait for a claim of it: a worker waits for nobody.
    """

    line = models.ForeignKey(Line, models.CASCADE, related_name="events", db_constraint=False)
    at = models.DateTimeField(db_default=Now())
    kind = models.CharField(max_length=24, choices=LineEventKind)
    sequence = models.BigIntegerField(null=True)
    delivery_id = models.BigIntegerField("delivery ID", null=True)
    reason = models.TextField(default="")

    class Meta:
        constraints = [models.CheckConstraint(name="line_event_kind", condition=Q(kind__in=LineEventKind.values))]

    def __str__(self) -> str:
        return f"{self.kind} {self.sequence}"


class QueueGroup(models.Model):
    """One message for one group of subscriptions, of which exactly one is to take it (contract 6.3, 6.4).

    It exists until an endpoint has taken it: the statement that deletes it has its one winner, and none can follow.
    Its deliveries name it by `group`, also when it is gone. It has the id of the first of them, so that each
    leads to the other.
    """

    message = models.ForeignKey(Message, models.DO_NOTHING, null=True, db_constraint=False, db_index=False)
    line = models.ForeignKey(Line, models.DO_NOTHING, null=True, db_constraint=False, db_index=False)
    """Its sender."""
    delivery_ids = ArrayField(models.BigIntegerField())
    """A delivery for each of the group's subscriptions."""
    size = models.IntegerField()
    """Of the message's body, in bytes."""
    waits_for = models.CharField(max_length=12, choices=WaitsFor, default=WaitsFor.TURN, db_default=WaitsFor.TURN)
    """Its turn until it was tried to the end; never a RETURN."""
    due_at = models.DateTimeField(null=True)
    """When it is tried again, or starts; None unless it waits for that, which the database checks."""
    cycles = models.PositiveIntegerField(default=0, db_default=0)
    """How often all its endpoints were tried and none took it; the pause grows with it (contract 6.5)."""
    attempts = models.PositiveIntegerField(default=0, db_default=0)
    """How many requests it has had, over all its endpoints."""
    uncertain = models.BooleanField(default=False, db_default=False)
    """Whether the outcome of any of them is unknown: the next request is flagged (contract 4.11)."""
    first_id = models.BigIntegerField(null=True)
    """The delivery whose request was in flight at an unclean end: it goes first, to the same endpoint."""
    created_at = models.DateTimeField(db_default=Now())

    class Meta:
        indexes = [
            # One for each group, in which its sender finds it.
            models.Index(name="queuegroup_turn", fields=["line", "id"], condition=Q(waits_for=WaitsFor.TURN)),
            models.Index(name="queuegroup_due", fields=["line", "due_at", "id"], condition=Q(due_at__isnull=False)),
            # Without those that are delayed, whose times may lie as far ahead as their publishers want.
            models.Index(name="queuegroup_retry", fields=["due_at"], condition=Q(waits_for=WaitsFor.RETRY)),
            models.Index(
                name="queuegroup_aside",
                fields=["waits_for", "line", "id"],
                condition=Q(waits_for__in=[WaitsFor.RELEASE, WaitsFor.SUBSCRIPTION]),
            ),
        ]
        constraints = [
            models.CheckConstraint(
                name="queue_group_due_at",
                condition=Q(waits_for__in=[WaitsFor.RETRY, WaitsFor.START], due_at__isnull=False)
                | Q(waits_for__in=[WaitsFor.TURN, WaitsFor.RELEASE, WaitsFor.SUBSCRIPTION], due_at=None),
            )
        ]

    def __str__(self) -> str:
        return f"{GROUP_ID_PREFIX}{self.pk}"


class Pace(models.Model):
    """One row for each subscription that has a rate limit (contract 1.4): a trigger makes it.

    Touched with each mark of such a delivery, or by a volatile message in its stead, and by no other. The database
    deletes it with its subscription.
    """

    subscription = models.OneToOneField(Subscription, models.DO_NOTHING, primary_key=True, db_constraint=False)
    last_at = models.DateTimeField(null=True)
    """The slot in which its latest request was started; None: there was none yet."""


class PageRead(models.Model):
    """One page that a line has read since it was claimed: what it marks as IN_FLIGHT is in one of them.

    Written with the read, once a page and not once a delivery, and forgotten by the next claim. So what a vanished
    worker may have had in flight is found without reading the backlog.
    """

    line = models.ForeignKey(Line, models.DO_NOTHING, db_constraint=False, db_index=False)
    epoch = models.BigIntegerField()
    """The line's: what is forgotten is found without passing what was forgotten before."""
    delivery_ids = ArrayField(models.BigIntegerField())

    class Meta:
        indexes = [models.Index(name="pageread_line", fields=["line", "epoch"])]


class TurnFloor(models.Model):
    """An id below which nothing of a subscription, or of a QUEUE sender's line, waits for its turn.

    There are some only while dead rows pile up: see `dispatch.turn_floors`. Not logged: none is needed after a crash.
    """

    subscription = models.ForeignKey(Subscription, models.DO_NOTHING, null=True, db_constraint=False, db_index=False)
    line = models.ForeignKey(Line, models.DO_NOTHING, null=True, db_constraint=False, db_index=False)
    floor = models.BigIntegerField()
    older = models.BigIntegerField()
    """What was lowest two notes ago."""
    newer = models.BigIntegerField()
    """What was lowest at the last note."""
    noted_at = models.DateTimeField()
    noted_xid = models.BigIntegerField()
    """The id of the transaction of the last note."""

    class Meta:
        indexes = [
            # Each note leaves a dead version, so the newest is found by its transaction.
            models.Index(name="turnfloor_subscription", fields=["subscription", "noted_xid"]),
            models.Index(name="turnfloor_line", fields=["line", "noted_xid"]),
            models.Index(name="turnfloor_noted", fields=["noted_xid"]),
        ]


class Announcement(models.Model):
    """One thing that has gone wrong, or goes right again, to be published as a message (contract 5.7).

    Written in the transaction of its cause and deleted in that of its message: each cause has exactly one, in order
    of id.
    """

    kind = models.CharField(max_length=32)
    """The event type's name: `Broker.…`."""
    line = models.ForeignKey(Line, models.DO_NOTHING, null=True, db_constraint=False, db_index=False)
    subscription = models.ForeignKey(Subscription, models.DO_NOTHING, null=True, db_constraint=False, db_index=False)
    delivery_id = models.BigIntegerField("delivery ID", null=True)
    """The delivery that has ended, or whose outcome has stopped the others."""
    details = models.JSONField(default=dict, db_default={})
    """What the event says beyond the names and ids: status, reason, number of attempts, times."""
    at = models.DateTimeField(db_default=Now())
    """When it happened."""

    def __str__(self) -> str:
        return f"{self.kind} {self.pk}"
