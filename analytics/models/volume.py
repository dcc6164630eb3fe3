"""How much was published."""

from django.db import models


class Volume(models.Model):
    """What one publisher published of one event type in one hour."""

    hour = models.DateTimeField()
    publisher_id = models.BigIntegerField(null=True)
    publisher = models.TextField(default="")
    event_type_id = models.BigIntegerField(null=True)
    event_type = models.TextField(default="")
    kind = models.TextField(default="")
    messages = models.BigIntegerField()
    bytes = models.BigIntegerField()
    deliveries = models.BigIntegerField()
    by_outcome = models.JSONField(default=dict)

    class Meta:
        db_table = "analytics_volume"
        verbose_name_plural = "volume"
        indexes = [models.Index(name="volume_hour", fields=["hour"])]

    def __str__(self) -> str:
        return f"{self.hour:%Y-%m-%d} {self.publisher}"
