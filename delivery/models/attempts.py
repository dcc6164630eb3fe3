"""One HTTP request and its answer."""

from django.db import models

from delivery.models.deliveries import Delivery


class Attempt(models.Model):
    """One request for one delivery and what came back; append-only, partitioned by `id` as messages are."""

    delivery = models.ForeignKey(Delivery, models.DO_NOTHING, null=True, db_constraint=False, db_index=False)
    number = models.IntegerField()
    started_at = models.DateTimeField()
    duration_ms = models.IntegerField()
    status_code = models.IntegerField(null=True)
    """None: no complete answer; `error` says why."""
    error = models.TextField(blank=True, default="")
    answer_headers = models.BinaryField(default=b"")
    """Status line and headers as received, cut at 2 KiB: bytes, since endpoints send anything."""
    answer_excerpt = models.BinaryField(default=b"")
    """The answer body's first KiB, as bytes."""
    meaning = models.CharField(max_length=10, null=True)  # noqa: DJ001 - None: what TeamForge would take it for
    """What followed from it under its subscription's retry policy (`Meaning`, behaviour 5.1)."""

    class Meta:
        indexes = [models.Index(name="attempt_delivery", fields=["delivery"])]

    def __str__(self) -> str:
        return f"attempt {self.number} of delivery {self.delivery_id}"

    @property
    def is_by_hand(self) -> bool:
        """Whether somebody had this very request sent: the first of a delivery that was resubmitted (behaviour 5.2)."""
        delivery = self.delivery
        return bool(delivery and delivery.resubmit_of and not delivery.replay_id) and self.number == 1
