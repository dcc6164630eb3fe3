"""Summaries, a model for each table of the pipeline's gold layer."""

from django.db import models


class Anomaly(models.Model):
    """One measure of one subscriber that is far from the same hour of the last four weeks."""

    hour = models.DateTimeField()
    subscriber_id = models.BigIntegerField(null=True)
    subscriber = models.TextField(default="")
    metric = models.TextField(default="")
    value = models.FloatField()
    median = models.FloatField()
    spread = models.FloatField()
    score = models.FloatField()
    past = models.IntegerField()

    class Meta:
        db_table = "analytics_anomalies"
        verbose_name_plural = "anomalies"
        indexes = [
            models.Index(name="anomalies_hour", fields=["hour"]),
            models.Index(name="anomalies_subscriber", fields=["subscriber_id", "hour"]),
        ]

    def __str__(self) -> str:
        return f"{self.hour:%Y-%m-%d} {self.subscriber}"


class OrderingAudit(models.Model):
    """What the ordering audit found among one subscriber's deliveries that ended in one hour."""

    hour = models.DateTimeField()
    subscriber_id = models.BigIntegerField(null=True)
    subscriber = models.TextField(default="")
    checked = models.BigIntegerField()
    inversions = models.BigIntegerField()
    explained_inversions = models.BigIntegerField()
    duplicates = models.BigIntegerField()
    explained_duplicates = models.BigIntegerField()
    high_id = models.BigIntegerField(null=True)
    high_sequence = models.BigIntegerField(null=True)
    high_created_at = models.DateTimeField(null=True)

    class Meta:
        db_table = "analytics_audit"
        verbose_name_plural = "ordering audit"
        indexes = [
            models.Index(name="audit_hour", fields=["hour"]),
            models.Index(name="audit_subscriber", fields=["subscriber_id", "hour"]),
        ]

    def __str__(self) -> str:
        return f"{self.hour:%Y-%m-%d} {self.subscriber}"


class Backlog(models.Model):
    """How many of one subscriber's deliveries were unfinished at one moment."""

    at = models.DateTimeField()
    subscriber_id = models.BigIntegerField(null=True)
    subscriber = models.TextField(default="")
    deliveries = models.BigIntegerField()

    class Meta:
        db_table = "analytics_backlog"
        verbose_name_plural = "backlog"
        indexes = [
            models.Index(name="backlog_at", fields=["at"]),
            models.Index(name="backlog_subscriber", fields=["subscriber_id", "at"]),
        ]

    def __str__(self) -> str:
        return f"{self.at:%Y-%m-%d} {self.subscriber}"


class ErrorBudget(models.Model):
    """One subscriber's error budget on one day, and of the 28 days up to it."""

    day = models.DateField()
    subscriber_id = models.BigIntegerField(null=True)
    subscriber = models.TextField(default="")
    eligible = models.BigIntegerField()
    bad = models.BigIntegerField()
    objective = models.FloatField()
    eligible_28 = models.BigIntegerField()
    bad_28 = models.BigIntegerField()
    spent = models.FloatField()

    class Meta:
        db_table = "analytics_budgets"
        verbose_name_plural = "error budgets"
        indexes = [
            models.Index(name="budgets_day", fields=["day"]),
            models.Index(name="budgets_subscriber", fields=["subscriber_id", "day"]),
        ]

    def __str__(self) -> str:
        return f"{self.day:%Y-%m-%d} {self.subscriber}"


class CallbackCount(models.Model):
    """Callbacks of one event type in one hour: asked for, answered, their replies forwarded."""

    hour = models.DateTimeField()
    event_type_id = models.BigIntegerField(null=True)
    event_type = models.TextField(default="")
    asked = models.BigIntegerField()
    answered = models.BigIntegerField()
    forwarded = models.BigIntegerField()

    class Meta:
        db_table = "analytics_callbacks"
        verbose_name_plural = "callbacks"
        indexes = [models.Index(name="callbacks_hour", fields=["hour"])]

    def __str__(self) -> str:
        return f"{self.hour:%Y-%m-%d} {self.event_type}"


class EndpointHealth(models.Model):
    """What one subscription's endpoint answered in one hour."""

    hour = models.DateTimeField()
    subscription_id = models.BigIntegerField(null=True)
    subscriber_id = models.BigIntegerField(null=True)
    subscriber = models.TextField(default="")
    event_type = models.TextField(default="")
    endpoint = models.TextField(default="")
    kind = models.TextField(default="")
    attempts = models.BigIntegerField()
    retries = models.BigIntegerField()
    failures = models.BigIntegerField()
    held_seconds = models.FloatField()
    by_class = models.JSONField(default=dict)

    class Meta:
        db_table = "analytics_endpoints"
        verbose_name_plural = "endpoints"
        indexes = [
            models.Index(name="endpoints_hour", fields=["hour"]),
            models.Index(name="endpoints_subscriber", fields=["subscriber_id", "hour"]),
        ]

    def __str__(self) -> str:
        return f"{self.hour:%Y-%m-%d} {self.subscriber}"


class AuditFinding(models.Model):
    """One delivery sent before an earlier one, or twice; `explanation` is empty where the contract has none."""

    hour = models.DateTimeField()
    at = models.DateTimeField()
    subscriber_id = models.BigIntegerField(null=True)
    subscriber = models.TextField(default="")
    finding = models.TextField(default="")
    delivery_id = models.BigIntegerField(null=True)
    other_id = models.BigIntegerField(null=True)
    explanation = models.TextField(default="")

    class Meta:
        db_table = "analytics_findings"
        verbose_name_plural = "audit findings"
        indexes = [
            models.Index(name="findings_hour", fields=["hour"]),
            models.Index(name="findings_subscriber", fields=["subscriber_id", "hour"]),
        ]

    def __str__(self) -> str:
        return f"{self.hour:%Y-%m-%d} {self.subscriber}"


class Latency(models.Model):
    """How long deliveries or attempts of one subscriber and event type took in one hour."""

    hour = models.DateTimeField()
    subscriber_id = models.BigIntegerField(null=True)
    subscriber = models.TextField(default="")
    event_type_id = models.BigIntegerField(null=True)
    event_type = models.TextField(default="")
    kind = models.TextField(default="")
    measure = models.TextField(default="")
    count = models.BigIntegerField()
    p50_ms = models.FloatField()
    p90_ms = models.FloatField()
    p95_ms = models.FloatField()
    p99_ms = models.FloatField()
    max_ms = models.BigIntegerField()
    histogram = models.JSONField(default=dict)

    class Meta:
        db_table = "analytics_latency"
        verbose_name_plural = "latencies"
        indexes = [
            models.Index(name="latency_hour", fields=["hour"]),
            models.Index(name="latency_subscriber", fields=["subscriber_id", "hour"]),
        ]

    def __str__(self) -> str:
        return f"{self.hour:%Y-%m-%d} {self.subscriber}"


class Reliability(models.Model):
    """How one subscriber's deliveries of one event type ended in one hour."""

    hour = models.DateTimeField()
    subscriber_id = models.BigIntegerField(null=True)
    subscriber = models.TextField(default="")
    event_type_id = models.BigIntegerField(null=True)
    event_type = models.TextField(default="")
    kind = models.TextField(default="")
    deliveries = models.BigIntegerField()
    delivered = models.BigIntegerField()
    eligible = models.BigIntegerField()
    first_attempt = models.BigIntegerField()
    attempts = models.BigIntegerField()
    by_status = models.JSONField(default=dict)

    class Meta:
        db_table = "analytics_reliability"
        verbose_name_plural = "reliability"
        indexes = [
            models.Index(name="reliability_hour", fields=["hour"]),
            models.Index(name="reliability_subscriber", fields=["subscriber_id", "hour"]),
        ]

    def __str__(self) -> str:
        return f"{self.hour:%Y-%m-%d} {self.subscriber}"


class SenderLoad(models.Model):
    """What one QUEUE sender ended in one hour."""

    hour = models.DateTimeField()
    sender = models.IntegerField()
    messages = models.BigIntegerField()
    deliveries = models.BigIntegerField()
    by_status = models.JSONField(default=dict)

    class Meta:
        db_table = "analytics_senders"
        verbose_name_plural = "QUEUE senders"
        indexes = [models.Index(name="senders_hour", fields=["hour"])]

    def __str__(self) -> str:
        return f"{self.hour:%Y-%m-%d} sender {self.sender}"


class EndpointShare(models.Model):
    """What one endpoint took of its QUEUE group in one hour."""

    hour = models.DateTimeField()
    group_of = models.BigIntegerField(null=True)
    subscription_id = models.BigIntegerField(null=True)
    subscriber_id = models.BigIntegerField(null=True)
    subscriber = models.TextField(default="")
    event_type = models.TextField(default="")
    endpoint = models.TextField(default="")
    deliveries = models.BigIntegerField()
    delivered = models.BigIntegerField()
    redundant = models.BigIntegerField()

    class Meta:
        db_table = "analytics_shares"
        verbose_name_plural = "endpoint shares"
        indexes = [
            models.Index(name="shares_hour", fields=["hour"]),
            models.Index(name="shares_subscriber", fields=["subscriber_id", "hour"]),
        ]

    def __str__(self) -> str:
        return f"{self.hour:%Y-%m-%d} {self.subscriber}"


class HourTotal(models.Model):
    """What the summaries of one hour come to, of all subscribers: whoever looks at all of them reads no more."""

    hour = models.DateTimeField(primary_key=True)
    deliveries = models.BigIntegerField(default=0)
    delivered = models.BigIntegerField(default=0)
    eligible = models.BigIntegerField(default=0)
    first_attempt = models.BigIntegerField(default=0)
    by_status = models.JSONField(default=dict)
    histogram = models.JSONField(default=dict)
    """Of how long deliveries took, from published to delivered."""
    backlog = models.BigIntegerField(default=0)
    """The most that were unfinished at one moment."""

    class Meta:
        db_table = "analytics_totals"

    def __str__(self) -> str:
        return f"{self.hour:%Y-%m-%d %H:%M}"


class Volume(models.Model):
    """What one publisher published of one event type in one hour."""

    hour = models.DateTimeField()
    publisher_id = models.BigIntegerField(null=True)
    publisher = models.TextField(default="")
    event_type_id = models.BigIntegerField(null=True)
    event_type = models.TextField(default="")
    kind = models.TextField(default="")
    messages = models.BigIntegerField()
    bytes = models.BigIntegerField()
    deliveries = models.BigIntegerField()
    by_outcome = models.JSONField(default=dict)

    class Meta:
        db_table = "analytics_volume"
        verbose_name_plural = "volume"
        indexes = [models.Index(name="volume_hour", fields=["hour"])]

    def __str__(self) -> str:
        return f"{self.hour:%Y-%m-%d} {self.publisher}"
