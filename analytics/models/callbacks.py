"""What became of callbacks."""

from django.db import models


class CallbackCount(models.Model):
    """Callbacks of one event type in one hour: asked for, answered, their replies forwarded."""

    hour = models.DateTimeField()
    event_type_id = models.BigIntegerField(null=True)
    event_type = models.TextField(default="")
    asked = models.BigIntegerField()
    answered = models.BigIntegerField()
    forwarded = models.BigIntegerField()

    class Meta:
        db_table = "analytics_callbacks"
        verbose_name_plural = "callbacks"
        indexes = [models.Index(name="callbacks_hour", fields=["hour"])]

    def __str__(self) -> str:
        return f"{self.hour:%Y-%m-%d} {self.event_type}"
