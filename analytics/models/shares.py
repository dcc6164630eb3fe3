"""How the endpoints of a QUEUE group share the work."""

from django.db import models


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
