"""When a subscription with a rate limit is sent next."""

from django.db import models
from django.db.models.functions import Now

from subscriptions.models import Subscription


class Pace(models.Model):
    """One row for each subscription that has a rate limit (behaviour 1.4), whoever sends it: a trigger gives it one.

    Touched with each mark of such a delivery, and by no other. The database deletes it with its subscription.
    """

    subscription = models.OneToOneField(Subscription, models.DO_NOTHING, primary_key=True, db_constraint=False)
    next_at = models.DateTimeField(db_default=Now())
    """Before when no request of it is started."""

    def __str__(self) -> str:
        return f"pace of subscription {self.pk}"
