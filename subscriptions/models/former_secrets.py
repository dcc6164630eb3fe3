"""What signed before the present secret did."""

from typing import Self

from django.db import models
from django.db.models import Func

from broker_project.core.sealed_fields import SealedText
from broker_project.core.sealing import FORMER_SECRET
from subscriptions.models.reserved_ids import ReservedId
from subscriptions.models.subscriptions import Subscription


class FormerSecretQuerySet(models.QuerySet["FormerSecret"]):
    """Former secrets, by whether they still sign."""

    def signing_for(self, subscription: Subscription) -> Self:
        """Keep those that sign what this subscription is sent."""
        now = Func(function="clock_timestamp", output_field=models.DateTimeField())
        return self.filter(subscription=subscription, signs_until__gt=now)


class FormerSecret(models.Model):
    """A subscription's signing secret that was replaced, and signs beside the present one until its time is over."""

    id = ReservedId("ID", primary_key=True, auto_created=True)
    subscription = models.ForeignKey(Subscription, models.CASCADE, related_name="+")
    secret = SealedText(purpose=FORMER_SECRET, needed_until="signs_until")
    signs_until = models.DateTimeField()

    objects = FormerSecretQuerySet.as_manager()

    def __str__(self) -> str:
        return f"former secret {self.pk}"
