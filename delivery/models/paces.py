"""How fast subscriptions with a rate limit are sent."""

from django.db import models

from subscriptions.models import Subscription


class Pace(models.Model):
    """One row for each subscription that has a rate limit (behaviour 1.4), whoever sends it: a trigger gives it one.

    Touched with each mark of such a delivery, or by a volatile message in its stead, and by no other. The database
    deletes it with its subscription.
    """

    subscription = models.OneToOneField(Subscription, models.DO_NOTHING, primary_key=True, db_constraint=False)
    last_at = models.DateTimeField(null=True)
    """The slot in which its latest request was started; None: there was none yet."""

    def __str__(self) -> str:
        return f"pace of subscription {self.pk}"
