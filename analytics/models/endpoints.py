"""How endpoints answered."""

from django.db import models


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
