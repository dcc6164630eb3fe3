"""What all subscribers come to."""

from django.db import models


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
