"""Which days have partitions."""

from django.db import models


class StorageDay(models.Model):
    """One day that messages, finished deliveries and attempts are filed under."""

    day = models.DateField(primary_key=True)
    dropped_at = models.DateTimeField(null=True)
    """When retention dropped it, and last looked how much of what it kept is needed still.

    The day stays listed while something unfinished needs messages of it.
    """

    summarized_at = models.DateTimeField(null=True)
    """When all that is filed under it was summarized last; retention may wait for it."""

    kept_on = models.DateField(null=True)
    """On which day it was last said that it is past its time, and kept until it is summarized."""

    def __str__(self) -> str:
        return self.day.isoformat()
