"""How often a login may be tried: django-axes asks before it lets a password be checked, the counting is ours.

A try is counted before its password is checked, so that concurrent tries are no more than sequential ones. A successful
login resets the count for its own name at its own address, and nothing else. Tries during a lock do not extend it.
"""

import datetime as dt
from dataclasses import dataclass
from typing import Any, Final

from axes.handlers.database import AxesDatabaseHandler
from axes.models import AccessAttempt
from django.contrib.auth.models import AbstractBaseUser
from django.db.models import Case, F, Max, Q, QuerySet, Sum, Value, When
from django.http import HttpRequest
from django.utils import timezone

from broker_project.core.rate_limit import client_prefix

MAX_PER_NAME: Final = 5
"""Tries for one name from one address until it is locked: more than a person needs, and no help for guessing."""
MAX_PER_ADDRESS: Final = 20
"""For any names: several people may share an address, as behind the router of an office."""
PAUSE: Final = dt.timedelta(minutes=15)
MAX_NAME: Final = 255
"""As the column has it. The form takes longer names, and nobody has one."""


@dataclass(frozen=True, slots=True)
class LoginTries:
    """The tries for a name, whether or not it exists, from an address; of IPv6 from its /64."""

    name: str
    address: str | None

    @property
    def counted(self) -> "QuerySet[AccessAttempt]":
        """The tries that count for this address, for any name; none of a time to come: the clock was ahead then."""
        rows: QuerySet[AccessAttempt] = AccessAttempt.objects.filter(ip_address=self.address)
        now = timezone.now()
        return rows.filter(attempt_time__range=(now - PAUSE, now + PAUSE))

    def totals(self) -> tuple[int, int]:
        """Return how many there were: for this name, and for all names."""
        own = Sum("failures_since_start", filter=Q(username=self.name), default=0)
        found = self.counted.aggregate(own=own, every=Sum("failures_since_start", default=0))
        return found["own"], found["every"]

    def exceed(self, more: int) -> bool:
        """Tell whether `more` tries beside the counted ones are too many."""
        own, every = self.totals()
        return own + more > MAX_PER_NAME or every + more > MAX_PER_ADDRESS

    def count(self, now: dt.datetime) -> None:
        """Count one more; after the pause the count starts again."""
        row = {"username": self.name, "ip_address": self.address, "user_agent": ""}
        counts = When(attempt_time__range=(now - PAUSE, now + PAUSE), then=F("failures_since_start") + 1)
        number = Case(counts, default=Value(1))
        changes = {"failures_since_start": number, "attempt_time": now}
        if not AccessAttempt.objects.filter(**row).update(**changes):
            first = {"failures_since_start": 1, "attempt_time": now}
            _, is_first = AccessAttempt.objects.get_or_create(**row, defaults=first)
            if not is_first:
                AccessAttempt.objects.filter(**row).update(**changes)

    def reset(self) -> None:
        """Forget the tries for this name from this address."""
        self.counted.filter(username=self.name).delete()

    def locked_until(self) -> dt.datetime:
        """Return when the next try may be made, if nobody else at this address tries."""
        own, _ = self.totals()
        which = self.counted.filter(username=self.name) if own >= MAX_PER_NAME else self.counted
        return (which.aggregate(last=Max("attempt_time"))["last"] or timezone.now()) + PAUSE


class Throttle(AxesDatabaseHandler):  # type: ignore[misc]
    """What axes asks before a password is checked, and tells afterwards."""

    def is_allowed(self, request: HttpRequest, credentials: dict[str, Any] | None = None) -> bool:
        """Count this try, and return whether its password may be checked."""
        tries = tries_of(request, credentials)
        if tries.exceed(1):
            return False
        tries.count(timezone.now())
        return not tries.exceed(0)

    def user_login_failed(
        self,
        sender: object,  # noqa: ARG002 - axes' signature
        credentials: dict[str, Any],
        request: HttpRequest | None = None,
        **_: object,
    ) -> None:
        """Keep the name for the answer; the try was counted before."""
        if request is not None:
            request.axes_credentials = credentials  # type: ignore[attr-defined]

    def user_logged_in(self, sender: object, request: HttpRequest, user: AbstractBaseUser, **_: object) -> None:  # noqa: ARG002
        """Reset the count for this name at this address."""
        tries_of(request, {"username": user.get_username()}).reset()

    def user_logged_out(self, sender: object, request: HttpRequest, user: object, **_: object) -> None:
        """Logouts do not count."""


def tries_of(request: HttpRequest, credentials: dict[str, Any] | None) -> LoginTries:
    """Return the tries that a request adds to."""
    name = ((credentials or {}).get("username") or "")[:MAX_NAME]
    return LoginTries(name, client_prefix(request.META.get("REMOTE_ADDR", "")) or None)


def delete_old_tries() -> None:
    """Delete tries that no longer count."""
    AccessAttempt.objects.filter(attempt_time__lt=timezone.now() - PAUSE).delete()
