"""How deliveries ended."""

from django.db import models


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
