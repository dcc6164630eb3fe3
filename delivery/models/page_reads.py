"""What lines have in hand."""

from django.contrib.postgres.fields import ArrayField
from django.db import models

from delivery.models.lines import Line


class PageRead(models.Model):
    """One page that a line has read since it was claimed: whatever it marks as under way is in one of them.

    Written with the read, once a page and not once a delivery, and forgotten by the next claim. So what a vanished
    driver may have had under way is found without looking at what waits, however much that is.
    """

    line = models.ForeignKey(Line, models.DO_NOTHING, db_constraint=False)
    delivery_ids = ArrayField(models.BigIntegerField())

    def __str__(self) -> str:
        return f"{len(self.delivery_ids)} deliveries of line {self.line_id}"
