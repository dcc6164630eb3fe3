"""How much waited."""

from django.db import models


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
