"""How long things took."""

from django.db import models


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
