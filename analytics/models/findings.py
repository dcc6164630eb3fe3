"""What the ordering audit found."""

from django.db import models


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
