"""Hours unlike the same hour of other days."""

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
