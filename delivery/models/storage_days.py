"""Which days have partitions."""

from django.db import models


class StorageDay(models.Model):
    """One day that messages, finished deliveries and attempts can be filed under."""

    day = models.DateField(primary_key=True)

    def __str__(self) -> str:
        return self.day.isoformat()
