"""Sending many again, and a new subscription what was published before it: jobs that a restart does not end."""

from typing import Any, Final

from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import Q
from django.db.models.functions import Now
from psycopg.types.multirange import Multirange

from subscriptions.models import Subscription


class ReplayKind(models.TextChoices):
    """What a job makes new deliveries of."""

    REPLAY = "REPLAY", "Replay"
    """Of deliveries that have ended."""

    BACKFILL = "BACKFILL", "Backfill"
    """Of messages published before the subscription was made."""


class ReplayState(models.TextChoices):
    """How far a job is."""

    COUNTING = "COUNTING"
    """What it is of is counted, a slice at a time; a backfill's deliveries get their ids with that."""

    WAITING = "WAITING", "Waiting for publishers"
    """Backfill: until nobody is still publishing who began before its subscription was ACTIVE."""

    FILING = "FILING", "Making deliveries"
    """Backfill: its deliveries are made, a slice at a time."""

    RUNNING = "RUNNING"
    """Replay: its deliveries are made, a slice at a time."""

    DONE = "DONE"
    """All of them are made."""

    CANCELLING = "CANCELLING"
    """Backfill: somebody ended it, and what its subscription has is being cancelled, a slice at a time."""

    CANCELLED = "CANCELLED"
    """Somebody ended it; what a replay made by then stays."""

    FAILED = "FAILED"
    """It could not go on; `reason` says why. What it has made stays; a backfill's subscription stays paused."""


ENDED: Final = frozenset({ReplayState.DONE, ReplayState.CANCELLED, ReplayState.FAILED})
OF_REPLAYS: Final = ENDED | {ReplayState.COUNTING, ReplayState.RUNNING}
OF_BACKFILLS: Final = frozenset(ReplayState) - {ReplayState.RUNNING}


class IdRanges(models.Field):  # type: ignore[type-arg]  # no brackets at run time
    """Ids as PostgreSQL's `int8multirange`, of which a million next to each other take no more room than one."""

    def db_type(self, connection: BaseDatabaseWrapper) -> str:  # noqa: ARG002 - as Django calls it
        """Name the column's type."""
        return "int8multirange"


class Replay(models.Model):
    """One job that makes new deliveries of what is stored (contract 5.8).

    A slice of new deliveries and how far the job is with them are written in one transaction: a crash
    leaves neither a missing nor a doubled one.
    """

    kind = models.CharField(max_length=8, choices=ReplayKind, default=ReplayKind.REPLAY, db_default=ReplayKind.REPLAY)
    state = models.CharField(
        max_length=10, choices=ReplayState, default=ReplayState.COUNTING, db_default=ReplayState.COUNTING
    )
    subscription = models.ForeignKey(
        Subscription, models.CASCADE, null=True, blank=True, db_index=False, related_name="replays"
    )
    """Of a backfill, the one that it is for; of a replay, the one that was asked for, if it was one."""
    selection = models.JSONField(default=dict, db_default={})
    """What was asked for, resolved: `subscriptions` (ids), `event_type` (id), `statuses`, `from`, `to`, `since`."""
    event_types = ArrayField(models.BigIntegerField(), null=True, blank=True)
    """Of a backfill: those that its subscription is for, known once nobody older is still publishing."""
    pace = models.PositiveIntegerField(null=True, blank=True)
    """New deliveries a second at most; None: as fast as it goes."""
    total = models.BigIntegerField(default=0, db_default=0)
    """How many there are to be, as far as they are counted."""
    filed = models.BigIntegerField(default=0, db_default=0)
    """How many new deliveries it has made."""
    skipped = models.BigIntegerField(default=0, db_default=0)
    """How many it has passed over: the subscription is inactive, the payload is no longer kept, another one took it."""
    failures = models.IntegerField(default=0, db_default=0)
    """How often it has failed since it last got on."""
    cursor_id = models.BigIntegerField(default=0, db_default=0)
    """The delivery, or of a backfill the message, up to which it is counted or done.

    Once a backfill is being cancelled: the newest delivery at that moment.
    """
    until = models.DateTimeField(db_default=Now())
    """What ends later is not part of it."""
    ids: "models.Field[Multirange[Any] | None, Multirange[Any] | None]" = IdRanges(null=True, blank=True)
    """Of a backfill: the ids that its deliveries are given, lower than any of what is published since."""
    last_given = models.BigIntegerField(null=True, blank=True)
    """The last of them that was given."""
    newest_id = models.BigIntegerField(null=True, blank=True)
    """The newest delivery, or of a backfill the newest message, that it looks at.

    Of a replay it is set at the start, so that its own deliveries are not part of it. Of a backfill it is set once all
    earlier publishes have ended.
    """
    sliced_at = models.DateTimeField(null=True, blank=True)
    """Of a replay: since when its pace counts."""
    transactions = ArrayField(models.TextField(), null=True, blank=True)
    """Of a backfill: PostgreSQL's virtual ids of those that may have published before; None until it waits for them."""
    reason = models.TextField(blank=True, default="", db_default="")
    """Why it failed, was cancelled or made fewer than were counted."""
    created_by = models.CharField(max_length=255, blank=True, default="", db_default="")
    """Whose key or account asked for it."""
    created_at = models.DateTimeField(db_default=Now())
    updated_at = models.DateTimeField(db_default=Now())
    finished_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        constraints = [
            models.CheckConstraint(
                name="replay_kind",
                condition=Q(kind=ReplayKind.REPLAY, state__in=sorted(OF_REPLAYS))
                | Q(kind=ReplayKind.BACKFILL, state__in=sorted(OF_BACKFILLS), subscription__isnull=False),
            ),
            models.CheckConstraint(
                name="replay_finished",
                condition=Q(state__in=sorted(ENDED), finished_at__isnull=False)
                | Q(state__in=sorted({*ReplayState} - ENDED), finished_at__isnull=True),
            ),
            models.UniqueConstraint(
                name="replay_one_backfill",
                fields=["subscription"],
                condition=Q(kind=ReplayKind.BACKFILL, finished_at__isnull=True),
            ),
        ]
        indexes = [
            models.Index(name="replay_running", fields=["id"], condition=Q(finished_at__isnull=True)),
            models.Index(name="replay_subscription", fields=["subscription", "id"]),
        ]
        permissions = [("replay", "Can send again, replay and backfill")]

    def __str__(self) -> str:
        return f"{ReplayKind(self.kind).label.lower()} {self.pk}"
