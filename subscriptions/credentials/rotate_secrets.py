"""Rotating signing secrets: for a while the former one signs beside the new one, until the receiver has that."""

from datetime import datetime, timedelta
from typing import Final

from django.db import transaction
from django.db.models import QuerySet

from broker_project.core.db import rows
from broker_project.core.encryption import DecryptionFailed
from subscriptions.credentials.tokens import secret_of
from subscriptions.edit import Versions, change, locked
from subscriptions.models import FormerSecret, Subscription

OVERLAP: Final = timedelta(days=1)
"""How long a former secret signs, unless somebody says otherwise."""
MAX_OVERLAP: Final = timedelta(days=7)
MAX_FORMER: Final = 3
"""Each is one signature more in every request."""

UNTIL: Final = "SELECT date_trunc('second', clock_timestamp() + %s::interval + interval '1 second')"
"""A whole second, as the time in each request that its signatures are of."""
FORGET: Final = "DELETE FROM subscriptions_formersecret WHERE signs_until <= clock_timestamp()"


class TooManySecrets(Exception):
    """As many former secrets sign already as may."""


def rotate_secret(
    which: QuerySet[Subscription],
    *,
    random_bytes: bytes,
    overlap: timedelta = OVERLAP,
    expected: Versions | None = None,
) -> Subscription:
    """Give the one subscription in `which` a new signing secret; the former signs too until `overlap` has passed.

    So do those that it had replaced: whoever has not heard of the new one, since the answer was lost, rotates again and
    breaks nothing. Without an overlap none of them signs any more.

    Raises:
        TooManySecrets: end the overlap first.
        VersionMismatch: see `configuring.change`.

    """
    with transaction.atomic():
        record = locked(which, expected)
        ends_at = _retire(record, overlap) if overlap else None
        if ends_at is None:
            _forget_all(record)
        return change(which, changes={"signing_secret": secret_of(random_bytes), "overlap_ends_at": ends_at})


def end_overlap(which: QuerySet[Subscription], *, expected: Versions | None = None) -> Subscription:
    """Let nothing but its present secret sign from now on."""
    with transaction.atomic():
        _forget_all(locked(which, expected))
        return change(which, changes={"overlap_ends_at": None})


def forget_former_secrets() -> None:
    """Delete those whose time is over; they do not sign any more."""
    rows(FORGET)


def _retire(record: Subscription, overlap: timedelta) -> datetime | None:
    """Let the present secret sign for so long; return until when any former one does. What is unreadable never did."""
    until: datetime
    ((until,),) = rows(UNTIL, [overlap])
    if FormerSecret.objects.signing_for(record).count() >= MAX_FORMER:
        raise TooManySecrets(f"{MAX_FORMER} former secrets sign already: end the overlap first, or rotate without one.")
    try:
        FormerSecret.objects.create(subscription=record, secret=record.signing_secret, signs_until=until)
    except DecryptionFailed:
        return record.overlap_ends_at  # of those before it
    return max(until, record.overlap_ends_at or until)


def _forget_all(record: Subscription) -> None:
    FormerSecret.objects.filter(subscription=record).delete()
