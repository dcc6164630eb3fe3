"""Rotate the secrets that sign webhooks: for a while the former secret signs too."""

from datetime import datetime, timedelta
from typing import Final

from django.db import transaction
from django.db.models import QuerySet

from broker_project.core.db import rows
from broker_project.core.encryption import DecryptionFailed
from subscriptions.credentials.tokens import new_secret
from subscriptions.edit import Versions, change, locked
from subscriptions.models import FormerSecret, Subscription

OVERLAP: Final = timedelta(days=1)
"""How long a former signing secret signs by default."""
MAX_OVERLAP: Final = timedelta(days=7)
MAX_FORMER: Final = 3
"""Each adds a signature to every request."""

OVERLAP_END: Final = """
SELECT date_trunc('second', clock_timestamp() + %s::interval + interval '1 second'), count(*)
  FROM subscriptions_formersecret WHERE subscription_id = %s AND signs_until > clock_timestamp()
"""
"""A whole second, like the time in each request that its signatures are of; and how many former secrets sign now."""
FORGET: Final = "DELETE FROM subscriptions_formersecret WHERE signs_until <= %s"


class TooManySecrets(Exception):
    """The maximum number of former secrets sign already."""


def rotate_secret(
    queryset: QuerySet[Subscription], *, overlap: timedelta = OVERLAP, expected: Versions | None = None
) -> Subscription:
    """Give the one subscription in `queryset` a new signing secret; the present one signs too for `overlap`.

    Secrets replaced earlier go on signing as well, so a client that has lost the answer can safely rotate again.
    Without an overlap no former secret signs any more. Raise `TooManySecrets` while the maximum signs, else as
    `edit.change`.
    """
    with transaction.atomic():
        record = locked(queryset, expected)
        ends_at = _retire(record, overlap) if overlap else None
        if ends_at is None:
            FormerSecret.objects.filter(subscription=record).delete()
        return change(queryset, changes={"signing_secret": new_secret(), "overlap_ends_at": ends_at})


def end_overlap(queryset: QuerySet[Subscription], *, expected: Versions | None = None) -> Subscription:
    """Let only its present secret sign from now on."""
    with transaction.atomic():
        FormerSecret.objects.filter(subscription=locked(queryset, expected)).delete()
        return change(queryset, changes={"overlap_ends_at": None})


def forget_former_secrets(now: datetime) -> None:
    """Delete the former secrets that no longer sign."""
    rows(FORGET, [now])


def _retire(record: Subscription, overlap: timedelta) -> datetime | None:
    """Let the present secret sign until `overlap` has passed; return until when any former secret signs."""
    until: datetime
    ((until, signing),) = rows(OVERLAP_END, [overlap, record.pk])
    if signing >= MAX_FORMER:
        raise TooManySecrets(f"{MAX_FORMER} former secrets sign already: end the overlap first, or rotate without one.")
    try:
        FormerSecret.objects.create(subscription=record, secret=record.signing_secret, signs_until=until)
    except DecryptionFailed:  # so it has never signed
        return record.overlap_ends_at
    return max(until, record.overlap_ends_at or until)
