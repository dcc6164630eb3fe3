"""The tables of deliveries, as Django makes them; the next migration partitions the large ones."""

import datetime

from django.contrib.postgres.fields import ArrayField
from django.db import migrations, models
from django.db.models import Q
from django.db.models.functions import Cast, Concat, Now

from broker_project.core.encryption import EncryptedColumn
from delivery.models.replays import IdRanges


def link(to):
    """Return a foreign key that the database does not check."""
    return models.ForeignKey(to, models.DO_NOTHING, null=True, db_constraint=False, db_index=False)


class Migration(migrations.Migration):
    initial = True
    dependencies = [("subscriptions", "0001_initial")]
    operations = [
        migrations.CreateModel(
            name="Message",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("event_type", link("subscriptions.eventtype")),
                ("publisher", link("subscriptions.publisher")),
                ("body", models.BinaryField()),
                ("size", models.IntegerField()),
                ("content_type", models.CharField(max_length=255)),
                ("headers", models.JSONField(default=list)),
                ("filter_string", models.TextField(null=True)),
                ("answers", models.BigIntegerField(null=True)),
                ("destination", models.CharField(max_length=255, null=True)),
                ("expires_at", models.DateTimeField(null=True)),
                ("not_before", models.DateTimeField(null=True)),
                ("copy_of", models.BigIntegerField(null=True)),
                (
                    "outcome",
                    models.CharField(
                        choices=[
                            ("ROUTED", "Routed"),
                            ("UNROUTED", "Nobody wants it"),
                            ("DISCARDED", "Not wanted there"),
                            ("DEAD_LETTERED", "No such subscriber"),
                        ],
                        max_length=16,
                    ),
                ),
                ("deliveries_count", models.IntegerField(default=0)),
                ("published_at", models.DateTimeField(db_default=Now())),
            ],
            options={
                "permissions": [("view_payload", "Can see bodies and headers, of messages and of answers")],
                "constraints": [
                    models.CheckConstraint(
                        condition=Q(outcome__in=["ROUTED", "UNROUTED", "DISCARDED", "DEAD_LETTERED"]),
                        name="message_outcome",
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="IdempotencyKey",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("publisher", link("subscriptions.publisher")),
                ("key", models.CharField(max_length=255)),
                ("fingerprint", models.BinaryField(max_length=32)),
                ("message_id", models.BigIntegerField(verbose_name="message ID")),
                ("outcome", models.CharField(max_length=16)),
                ("deliveries_count", models.PositiveIntegerField()),
                ("expires_at", models.DateTimeField(db_index=True)),
            ],
            options={
                "constraints": [
                    models.UniqueConstraint(fields=("key", "publisher"), name="idempotency_key", nulls_distinct=False)
                ]
            },
        ),
        migrations.CreateModel(
            name="VolatileCount",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("hour", models.DateTimeField()),
                (
                    "event_type",
                    models.ForeignKey(
                        db_constraint=False, db_index=False, on_delete=models.DO_NOTHING, to="subscriptions.eventtype"
                    ),
                ),
                ("subscription", link("subscriptions.subscription")),
                ("accepted", models.BigIntegerField(db_default=0, default=0)),
                ("filtered", models.BigIntegerField(db_default=0, default=0)),
                ("delivered", models.BigIntegerField(db_default=0, default=0)),
                ("refused", models.BigIntegerField(db_default=0, default=0)),
                ("no_answer", models.BigIntegerField(db_default=0, default=0)),
                ("not_allowed", models.BigIntegerField(db_default=0, default=0)),
                ("skipped", models.BigIntegerField(db_default=0, default=0)),
                ("expired", models.BigIntegerField(db_default=0, default=0)),
                ("dropped", models.BigIntegerField(db_default=0, default=0)),
                ("lost", models.BigIntegerField(db_default=0, default=0)),
            ],
            options={
                "constraints": [
                    models.UniqueConstraint(
                        fields=("hour", "event_type", "subscription"), name="volatile_count", nulls_distinct=False
                    )
                ]
            },
        ),
        migrations.CreateModel(
            name="Callback",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("group_id", models.BigIntegerField(unique=True)),
                (
                    "message",
                    models.ForeignKey(
                        db_constraint=False,
                        null=True,
                        on_delete=models.DO_NOTHING,
                        related_name="+",
                        to="delivery.message",
                    ),
                ),
                ("event_type", link("subscriptions.eventtype")),
                ("publisher", link("subscriptions.publisher")),
                ("url", models.TextField(blank=True, db_default="", default="", verbose_name="URL")),
                (
                    "parent",
                    models.ForeignKey(
                        db_index=False, null=True, on_delete=models.SET_NULL, related_name="+", to="delivery.callback"
                    ),
                ),
                ("depth", models.PositiveSmallIntegerField(db_default=1, default=1)),
                ("token_hash", models.BinaryField(max_length=32, unique=True)),
                ("token_sealed", EncryptedColumn(purpose="callback token")),
                ("created_at", models.DateTimeField(db_default=Now())),
                ("expires_at", models.DateTimeField(null=True)),
                (
                    "reply",
                    models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        null=True,
                        on_delete=models.DO_NOTHING,
                        related_name="+",
                        to="delivery.message",
                    ),
                ),
                ("reply_fingerprint", models.BinaryField(max_length=32, null=True)),
                ("replied_at", models.DateTimeField(null=True)),
                ("delivery_id", models.BigIntegerField(null=True, verbose_name="delivery ID")),
            ],
            options={
                "indexes": [
                    models.Index(fields=["expires_at", "id"], name="callback_expiry"),
                    models.Index(fields=["publisher", "id"], name="callback_publisher"),
                    models.Index(condition=Q(parent__isnull=False), fields=["parent"], name="callback_parent"),
                    models.Index(condition=Q(reply__isnull=False), fields=["reply"], name="callback_of_reply"),
                ],
                "constraints": [
                    models.CheckConstraint(condition=Q(url="") | Q(parent=None), name="callback_target"),
                    models.CheckConstraint(
                        condition=Q(replied_at=None, reply=None, reply_fingerprint=None)
                        | Q(replied_at__isnull=False, reply__isnull=False, reply_fingerprint__isnull=False),
                        name="callback_reply",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="Line",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                (
                    "lane",
                    models.CharField(
                        choices=[("main", "Topic"), ("retry", "Retry"), ("queue", "Queue"), ("callback", "Callback")],
                        db_default="main",
                        default="main",
                        max_length=8,
                    ),
                ),
                (
                    "subscriber",
                    models.ForeignKey(
                        db_index=False,
                        null=True,
                        on_delete=models.CASCADE,
                        related_name="lines",
                        to="subscriptions.subscriber",
                    ),
                ),
                ("sender", models.PositiveSmallIntegerField(null=True)),
                (
                    "callback",
                    models.OneToOneField(
                        null=True, on_delete=models.CASCADE, related_name="line", to="delivery.callback"
                    ),
                ),
                (
                    "queue",
                    models.GeneratedField(
                        db_persist=True,
                        expression=models.Case(
                            models.When(lane="retry", then=models.Value("retry")),
                            models.When(
                                lane="queue", then=Concat(models.Value("queue."), Cast("sender", models.TextField()))
                            ),
                            models.When(lane="callback", then=models.Value("callbacks")),
                            default=models.Value("topic"),
                            output_field=models.TextField(),
                        ),
                        output_field=models.TextField(),
                    ),
                ),
                ("epoch", models.BigIntegerField(db_default=0, default=0)),
                ("lease_until", models.DateTimeField(null=True)),
                ("worker", models.CharField(db_default="", default="", max_length=255)),
                ("last_sequence", models.BigIntegerField(db_default=0, default=0)),
                ("due_at", models.DateTimeField(null=True)),
                ("deferred_next", models.BooleanField(db_default=False, default=False)),
                ("pause_announced_at", models.DateTimeField(null=True)),
            ],
            options={
                "indexes": [
                    models.Index(condition=Q(lease_until__isnull=False), fields=["lease_until"], name="line_leased"),
                    models.Index(condition=Q(pause_announced_at__isnull=False), fields=["id"], name="line_pauses"),
                ],
                "constraints": [
                    models.UniqueConstraint(fields=("subscriber", "lane", "epoch"), name="line_lane"),
                    models.UniqueConstraint(fields=("sender",), name="line_sender"),
                    models.CheckConstraint(
                        condition=Q(callback=None, lane__in=["main", "retry"], sender=None, subscriber__isnull=False)
                        | Q(callback=None, lane="queue", sender__isnull=False, subscriber=None)
                        | Q(callback__isnull=False, lane="callback", sender=None, subscriber=None),
                        name="line_owner",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="LineEvent",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                (
                    "line",
                    models.ForeignKey(
                        db_constraint=False, on_delete=models.CASCADE, related_name="events", to="delivery.line"
                    ),
                ),
                ("at", models.DateTimeField(db_default=Now())),
                (
                    "kind",
                    models.CharField(
                        choices=[
                            ("NUMBER_UNCERTAIN", "Number Uncertain"),
                            ("RELEASED", "Released"),
                            ("PAUSED", "Paused"),
                            ("RESUMED", "Resumed"),
                            ("DIVERTED", "Diverted"),
                            ("DIVERSION_ENDED", "Diversion Ended"),
                        ],
                        max_length=24,
                    ),
                ),
                ("sequence", models.BigIntegerField(null=True)),
                ("delivery_id", models.BigIntegerField(null=True, verbose_name="delivery ID")),
                ("reason", models.TextField(default="")),
            ],
            options={
                "constraints": [
                    models.CheckConstraint(
                        condition=Q(
                            kind__in=[
                                "NUMBER_UNCERTAIN",
                                "RELEASED",
                                "PAUSED",
                                "RESUMED",
                                "DIVERTED",
                                "DIVERSION_ENDED",
                            ]
                        ),
                        name="line_event_kind",
                    )
                ]
            },
        ),
        migrations.CreateModel(
            name="QueueGroup",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("message", link("delivery.message")),
                ("line", link("delivery.line")),
                ("delivery_ids", ArrayField(base_field=models.BigIntegerField(), size=None)),
                ("size", models.IntegerField()),
                (
                    "waits_for",
                    models.CharField(
                        choices=[
                            ("TURN", "Turn"),
                            ("RETRY", "Retry"),
                            ("START", "Start"),
                            ("RELEASE", "Release"),
                            ("RETURN", "Return"),
                            ("SUBSCRIPTION", "Subscription"),
                        ],
                        db_default="TURN",
                        default="TURN",
                        max_length=12,
                    ),
                ),
                ("due_at", models.DateTimeField(null=True)),
                ("cycles", models.PositiveIntegerField(db_default=0, default=0)),
                ("attempts", models.PositiveIntegerField(db_default=0, default=0)),
                ("uncertain", models.BooleanField(db_default=False, default=False)),
                ("first_id", models.BigIntegerField(null=True)),
                ("created_at", models.DateTimeField(db_default=Now())),
            ],
            options={
                "indexes": [
                    models.Index(condition=Q(waits_for="TURN"), fields=["line", "id"], name="queuegroup_turn"),
                    models.Index(
                        condition=Q(due_at__isnull=False), fields=["line", "due_at", "id"], name="queuegroup_due"
                    ),
                    models.Index(condition=Q(waits_for="RETRY"), fields=["due_at"], name="queuegroup_retry"),
                    models.Index(
                        condition=Q(waits_for__in=["RELEASE", "SUBSCRIPTION"]),
                        fields=["waits_for", "line", "id"],
                        name="queuegroup_aside",
                    ),
                ],
                "constraints": [
                    models.CheckConstraint(
                        condition=Q(due_at__isnull=False, waits_for__in=["RETRY", "START"])
                        | Q(due_at=None, waits_for__in=["TURN", "RELEASE", "SUBSCRIPTION"]),
                        name="queue_group_due_at",
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="Pace",
            fields=[
                (
                    "subscription",
                    models.OneToOneField(
                        db_constraint=False,
                        on_delete=models.DO_NOTHING,
                        primary_key=True,
                        serialize=False,
                        to="subscriptions.subscription",
                    ),
                ),
                ("last_at", models.DateTimeField(null=True)),
            ],
        ),
        migrations.CreateModel(
            name="PageRead",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                (
                    "line",
                    models.ForeignKey(
                        db_constraint=False, db_index=False, on_delete=models.DO_NOTHING, to="delivery.line"
                    ),
                ),
                ("epoch", models.BigIntegerField()),
                ("delivery_ids", ArrayField(base_field=models.BigIntegerField(), size=None)),
            ],
            options={"indexes": [models.Index(fields=["line", "epoch"], name="pageread_line")]},
        ),
        migrations.CreateModel(
            name="TurnFloor",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("subscription", link("subscriptions.subscription")),
                ("line", link("delivery.line")),
                ("floor", models.BigIntegerField()),
                ("older", models.BigIntegerField()),
                ("newer", models.BigIntegerField()),
                ("noted_at", models.DateTimeField()),
                ("noted_xid", models.BigIntegerField()),
            ],
            options={
                "indexes": [
                    models.Index(fields=["subscription", "noted_xid"], name="turnfloor_subscription"),
                    models.Index(fields=["line", "noted_xid"], name="turnfloor_line"),
                    models.Index(fields=["noted_xid"], name="turnfloor_noted"),
                ]
            },
        ),
        migrations.CreateModel(
            name="Announcement",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("kind", models.CharField(max_length=32)),
                ("line", link("delivery.line")),
                ("subscription", link("subscriptions.subscription")),
                ("delivery_id", models.BigIntegerField(null=True, verbose_name="delivery ID")),
                ("details", models.JSONField(db_default={}, default=dict)),
                ("at", models.DateTimeField(db_default=Now())),
            ],
        ),
        migrations.CreateModel(
            name="Delivery",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("message", link("delivery.message")),
                ("line", link("delivery.line")),
                ("subscription", link("subscriptions.subscription")),
                ("group", link("delivery.queuegroup")),
                (
                    "status",
                    models.CharField(
                        choices=[
                            ("PENDING", "Waiting"),
                            ("IN_FLIGHT", "In flight"),
                            ("HELD", "Needs decision"),
                            ("DELIVERED", "Delivered"),
                            ("REJECTED", "Rejected"),
                            ("3xxNOTSUPPORTED", "Redirected"),
                            ("REDUNDANT", "Done by another"),
                            ("FAILED", "Failed"),
                            ("EXPIRED", "Expired"),
                            ("CANCELLED", "Cancelled"),
                        ],
                        default="PENDING",
                        max_length=16,
                    ),
                ),
                ("size", models.IntegerField()),
                ("attempts", models.IntegerField(db_default=0, default=0)),
                ("times_deferred", models.IntegerField(db_default=0, default=0)),
                (
                    "waits_for",
                    models.CharField(
                        choices=[
                            ("TURN", "Turn"),
                            ("RETRY", "Retry"),
                            ("START", "Start"),
                            ("RELEASE", "Release"),
                            ("RETURN", "Return"),
                            ("SUBSCRIPTION", "Subscription"),
                        ],
                        db_default="TURN",
                        default="TURN",
                        editable=False,
                        max_length=12,
                    ),
                ),
                ("due_at", models.DateTimeField(blank=True, null=True)),
                ("sequence", models.BigIntegerField(blank=True, null=True)),
                ("uncertain", models.BooleanField(db_default=False, default=False)),
                ("crash_count", models.SmallIntegerField(db_default=0, default=0, editable=False)),
                ("unreceived", models.BooleanField(db_default=False, default=False)),
                ("fetches", models.IntegerField(db_default=0, default=0)),
                ("fetch_id", models.BigIntegerField(editable=False, null=True)),
                ("fetched_until", models.DateTimeField(blank=True, null=True)),
                ("fetched_seconds", models.IntegerField(editable=False, null=True)),
                ("cancel_requested", models.BooleanField(db_default=False, default=False)),
                ("expires_at", models.DateTimeField(blank=True, null=True)),
                ("not_before", models.DateTimeField(blank=True, null=True)),
                ("resubmit_of", models.BigIntegerField(blank=True, null=True)),
                ("replay_id", models.BigIntegerField(blank=True, null=True)),
                ("ordering_key", models.TextField(blank=True, db_collation="C", null=True)),
                ("reason", models.TextField(blank=True, db_default="", default="")),
                ("created_at", models.DateTimeField(db_default=Now())),
                ("finished_at", models.DateTimeField(blank=True, null=True)),
                (
                    "closed_on",
                    models.DateField(
                        db_default=datetime.date(9999, 12, 31), default=datetime.date(9999, 12, 31), editable=False
                    ),
                ),
            ],
            options={"verbose_name_plural": "deliveries"},
        ),
        migrations.CreateModel(
            name="Hold",
            fields=[
                (
                    "delivery",
                    models.OneToOneField(
                        db_constraint=False,
                        on_delete=models.DO_NOTHING,
                        primary_key=True,
                        related_name="hold",
                        serialize=False,
                        to="delivery.delivery",
                    ),
                ),
                (
                    "line",
                    models.ForeignKey(
                        db_constraint=False, on_delete=models.CASCADE, related_name="holds", to="delivery.line"
                    ),
                ),
                ("due_at", models.DateTimeField(db_default=Now(), db_index=True)),
                ("since", models.DateTimeField(db_default=Now())),
                ("failures", models.PositiveIntegerField(db_default=0, default=0)),
                ("reason", models.TextField(db_default="", default="")),
                ("config_version", models.BigIntegerField(db_default=0, default=0)),
            ],
        ),
        migrations.CreateModel(
            name="Attempt",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("delivery", link("delivery.delivery")),
                ("number", models.IntegerField()),
                ("started_at", models.DateTimeField()),
                ("duration_ms", models.IntegerField()),
                ("status_code", models.IntegerField(null=True)),
                ("error", models.TextField(blank=True, default="")),
                ("answer_headers", models.BinaryField(default=b"")),
                ("answer_excerpt", models.BinaryField(default=b"")),
                ("sent", models.BinaryField(null=True)),
                ("meaning", models.CharField(max_length=10, null=True)),
            ],
        ),
        migrations.CreateModel(
            name="DeadLetter",
            fields=[],
            options={"verbose_name": "dead letter", "proxy": True},
            bases=("delivery.delivery",),
        ),
        migrations.CreateModel(
            name="Mailbox",
            fields=[],
            options={"verbose_name_plural": "mailboxes", "proxy": True},
            bases=("subscriptions.subscriber",),
        ),
        migrations.CreateModel(
            name="StorageDay",
            fields=[
                ("day", models.DateField(primary_key=True, serialize=False)),
                ("lived", models.BooleanField(db_default=False, default=False)),
                ("dropped_at", models.DateTimeField(null=True)),
                ("summarized_at", models.DateTimeField(null=True)),
                ("kept_on", models.DateField(null=True)),
            ],
        ),
        migrations.CreateModel(
            name="ClockJump",
            fields=[
                ("id", models.SmallIntegerField(primary_key=True, serialize=False)),
                ("seconds", models.FloatField()),
                ("believed_at", models.DateTimeField()),
            ],
        ),
        migrations.CreateModel(
            name="MinuteTotal",
            fields=[
                ("deliveries", models.IntegerField()),
                ("delivered", models.IntegerField()),
                ("eligible", models.IntegerField()),
                ("buckets", ArrayField(base_field=models.SmallIntegerField(), size=None)),
                ("bucket_counts", ArrayField(base_field=models.IntegerField(), size=None)),
                ("minute", models.DateTimeField(primary_key=True, serialize=False)),
                ("due", models.IntegerField(null=True)),
            ],
        ),
        migrations.CreateModel(
            name="MinuteCount",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("deliveries", models.IntegerField()),
                ("delivered", models.IntegerField()),
                ("eligible", models.IntegerField()),
                ("buckets", ArrayField(base_field=models.SmallIntegerField(), size=None)),
                ("bucket_counts", ArrayField(base_field=models.IntegerField(), size=None)),
                ("minute", models.DateTimeField(db_index=True)),
                ("subscriber", link("subscriptions.subscriber")),
                ("event_type", link("subscriptions.eventtype")),
            ],
            options={"indexes": [models.Index(fields=["subscriber", "minute"], name="minute_count_subscriber")]},
        ),
        migrations.CreateModel(
            name="Replay",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                (
                    "kind",
                    models.CharField(
                        choices=[("REPLAY", "Replay"), ("BACKFILL", "Backfill")],
                        db_default="REPLAY",
                        default="REPLAY",
                        max_length=8,
                    ),
                ),
                (
                    "state",
                    models.CharField(
                        choices=[
                            ("COUNTING", "Counting"),
                            ("WAITING", "Waiting for publishers"),
                            ("FILING", "Making deliveries"),
                            ("RUNNING", "Running"),
                            ("DONE", "Done"),
                            ("CANCELLING", "Cancelling"),
                            ("CANCELLED", "Cancelled"),
                            ("FAILED", "Failed"),
                        ],
                        db_default="COUNTING",
                        default="COUNTING",
                        max_length=10,
                    ),
                ),
                (
                    "subscription",
                    models.ForeignKey(
                        blank=True,
                        db_index=False,
                        null=True,
                        on_delete=models.CASCADE,
                        related_name="replays",
                        to="subscriptions.subscription",
                    ),
                ),
                ("selection", models.JSONField(db_default={}, default=dict)),
                ("event_types", ArrayField(base_field=models.BigIntegerField(), blank=True, null=True, size=None)),
                ("pace", models.PositiveIntegerField(blank=True, null=True)),
                ("total", models.BigIntegerField(db_default=0, default=0)),
                ("filed", models.BigIntegerField(db_default=0, default=0)),
                ("skipped", models.BigIntegerField(db_default=0, default=0)),
                ("failures", models.IntegerField(db_default=0, default=0)),
                ("cursor_id", models.BigIntegerField(db_default=0, default=0)),
                ("until", models.DateTimeField(db_default=Now())),
                ("ids", IdRanges(blank=True, null=True)),
                ("last_given", models.BigIntegerField(blank=True, null=True)),
                ("newest_id", models.BigIntegerField(blank=True, null=True)),
                ("sliced_at", models.DateTimeField(blank=True, null=True)),
                ("transactions", ArrayField(base_field=models.TextField(), blank=True, null=True, size=None)),
                ("reason", models.TextField(blank=True, db_default="", default="")),
                ("created_by", models.CharField(blank=True, db_default="", default="", max_length=255)),
                ("created_at", models.DateTimeField(db_default=Now())),
                ("updated_at", models.DateTimeField(db_default=Now())),
                ("finished_at", models.DateTimeField(blank=True, null=True)),
            ],
            options={
                "permissions": [("replay", "Can send again, replay and backfill")],
                "indexes": [
                    models.Index(condition=Q(finished_at__isnull=True), fields=["id"], name="replay_running"),
                    models.Index(fields=["subscription", "id"], name="replay_subscription"),
                ],
                "constraints": [
                    models.CheckConstraint(
                        condition=Q(kind="REPLAY", state__in=["CANCELLED", "COUNTING", "DONE", "FAILED", "RUNNING"])
                        | Q(
                            kind="BACKFILL",
                            state__in=["CANCELLED", "CANCELLING", "COUNTING", "DONE", "FAILED", "FILING", "WAITING"],
                            subscription__isnull=False,
                        ),
                        name="replay_kind",
                    ),
                    models.CheckConstraint(
                        condition=Q(finished_at__isnull=False, state__in=["CANCELLED", "DONE", "FAILED"])
                        | Q(
                            finished_at__isnull=True,
                            state__in=["CANCELLING", "COUNTING", "FILING", "RUNNING", "WAITING"],
                        ),
                        name="replay_finished",
                    ),
                    models.UniqueConstraint(
                        condition=Q(finished_at__isnull=True, kind="BACKFILL"),
                        fields=("subscription",),
                        name="replay_one_backfill",
                    ),
                ],
            },
        ),
    ]
