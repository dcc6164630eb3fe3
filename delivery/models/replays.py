"""Sending many again, and a new subscription what was published before it: jobs that a restart does not end."""

from typing import Any, Final

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

    RESERVED = "RESERVED"
    """Backfill: its deliveries have their ids, and from now on what is published is stored behind them."""

    WAITING = "WAITING"
    """Backfill: until nobody is still publishing who began before that."""

    FILING = "FILING"
    """Backfill: its deliveries are made, a slice at a time."""

    RUNNING = "RUNNING"
    """Replay: its deliveries are made, a slice at a time."""

    DONE = "DONE"
    """All of them are made."""

    CANCELLED = "CANCELLED"
    """Somebody ended it; what was made by then stays."""

    FAILED = "FAILED"
    """It cannot go on; `reason` says why."""


ENDED: Final = frozenset({ReplayState.DONE, ReplayState.CANCELLED, ReplayState.FAILED})
OF_REPLAYS: Final = ENDED | {ReplayState.RUNNING}
OF_BACKFILLS: Final = ENDED | {ReplayState.RESERVED, ReplayState.WAITING, ReplayState.FILING}


class IdRanges(models.Field):  # type: ignore[type-arg]  # no brackets at run time
    """Ids as PostgreSQL's `int8multirange`, of which a million next to each other take no more room than one."""

    def db_type(self, connection: BaseDatabaseWrapper) -> str:  # noqa: ARG002 - as Django calls it
        """Name the column's type."""
        return "int8multirange"


class Replay(models.Model):
    """One job that makes new deliveries of what is stored (behaviour 5.8).

    A slice of new deliveries and how far the job is with them are written in one transaction: whoever is killed
    leaves neither a missing nor a doubled one.
    """

    kind = models.CharField(max_length=8, choices=ReplayKind, default=ReplayKind.REPLAY, db_default=ReplayKind.REPLAY)
    state = models.CharField(
        max_length=9, choices=ReplayState, default=ReplayState.RUNNING, db_default=ReplayState.RUNNING
    )
    subscription = models.ForeignKey(
        Subscription, models.CASCADE, null=True, blank=True, db_index=False, related_name="replays"
    )
    """Of a backfill, the one that it is for; of a replay, the one that was asked for, if it was one."""
    selection = models.JSONField(default=dict, db_default={})
    """What was asked for, resolved: `subscriptions` (ids), `event_type` (id), `statuses`, `from`, `to`, `since`."""
    pace = models.PositiveIntegerField(null=True, blank=True)
    """New deliveries a second at most; None: as fast as it goes."""
    total = models.BigIntegerField(default=0, db_default=0)
    """How many there were to be when it was counted, before it was made."""
    filed = models.BigIntegerField(default=0, db_default=0)
    """How many new deliveries it has made."""
    skipped = models.BigIntegerField(default=0, db_default=0)
    """How many it has passed over: the subscription is inactive, or the payload is no longer kept."""
    cursor_id = models.BigIntegerField(default=0, db_default=0)
    """The delivery, or of a backfill the message, up to which it is done."""
    until = models.DateTimeField(db_default=Now())
    """What ends later is not part of it: nor is what it makes itself."""
    ids: "models.Field[Multirange[Any] | None, Multirange[Any] | None]" = IdRanges(null=True, blank=True)
    """Of a backfill: the ids that its deliveries are given, lower than any of what is published since."""
    last_given = models.BigIntegerField(null=True, blank=True)
    """The last of them that was given."""
    newest_before = models.BigIntegerField(null=True, blank=True)
    """Of a backfill: the newest message when it was reserved. Later ones may have a delivery by themselves."""
    newest_filed = models.BigIntegerField(null=True, blank=True)
    """Of a backfill: the newest message that it looks at, known once nobody older is still publishing."""
    sliced_at = models.DateTimeField(null=True, blank=True)
    """When it made the last slice: since then its pace counts."""
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
        ]
        indexes = [
            models.Index(name="replay_running", fields=["id"], condition=Q(finished_at__isnull=True)),
            models.Index(name="replay_subscription", fields=["subscription", "id"]),
        ]
        permissions = [("replay", "Can send again, replay and backfill")]

    def __str__(self) -> str:
        return f"{ReplayKind(self.kind).label.lower()} {self.pk}"
