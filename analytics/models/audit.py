"""Whether order was kept."""

from django.db import models


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
