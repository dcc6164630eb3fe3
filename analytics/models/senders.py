"""How the QUEUE senders share the work."""

from django.db import models


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
