"""Deliveries that have come to nothing, as a list of their own."""

from delivery.models.deliveries import Delivery


class DeadLetter(Delivery):
    """A delivery that ended without success and that somebody might want to send again (behaviour 5.3, 5.8)."""

    class Meta:
        proxy = True
        verbose_name = "dead letter"
