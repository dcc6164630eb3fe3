"""How often a login may be tried, with django-axes: its model, its place before passwords, and our own counting.

A try is counted before its password is looked at, so that many at once are no more than one after the other; a login
that succeeds takes back what was counted for its own name at its own address, and nothing else. No try made while one
is locked out counts: the end does not move.
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
"""Tries for one name from one address until it has to pause: more than a person needs, and no help to who guesses."""
MAX_PER_ADDRESS: Final = 20
"""For whatever names: several people may share an address, as behind the router of an office."""
PAUSE: Final = dt.timedelta(minutes=15)


@dataclass(frozen=True, slots=True)
class Tries:
    """Who tries: a name that exists or not, from an address; of IPv6, from the network that one connection has."""

    name: str
    address: str | None

    def counted(self) -> "QuerySet[AccessAttempt]":
        """Return what counts of this name at this address."""
        return self.of_address().filter(username=self.name)

    def of_address(self) -> "QuerySet[AccessAttempt]":
        """Return what counts of this address, whatever the name."""
        return _recent().filter(ip_address=self.address)

    def made(self) -> tuple[int, int]:
        """Return how many there were: for this name, and of all names."""
        own = Sum("failures_since_start", filter=Q(username=self.name), default=0)
        found = self.of_address().aggregate(own=own, every=Sum("failures_since_start", default=0))
        return found["own"], found["every"]

    def are_over(self, more: int) -> bool:
        """Tell whether `more` tries beside those made would be too many."""
        own, every = self.made()
        return own + more > MAX_PER_NAME or every + more > MAX_PER_ADDRESS

    def count(self, now: dt.datetime) -> None:
        """Count one more; one that is older than the pause begins anew."""
        row = {"username": self.name, "ip_address": self.address, "user_agent": ""}
        if not self._one_more(row, now):
            first = {"failures_since_start": 1, "attempt_time": now}
            _, is_first = AccessAttempt.objects.get_or_create(**row, defaults=first)
            if not is_first:
                self._one_more(row, now)

    def take_back(self) -> None:
        """Count nothing of this name at this address any more."""
        self.counted().delete()

    def free_at(self) -> dt.datetime:
        """Return when there may be more, if nobody else at this address tries."""
        own, _ = self.made()
        which = self.counted() if own >= MAX_PER_NAME else self.of_address()
        return (which.aggregate(last=Max("attempt_time"))["last"] or timezone.now()) + PAUSE

    def _one_more(self, row: dict[str, Any], now: dt.datetime) -> int:
        counted = Case(When(attempt_time__lt=now - PAUSE, then=Value(1)), default=F("failures_since_start") + 1)
        rows: int = AccessAttempt.objects.filter(**row).update(failures_since_start=counted, attempt_time=now)
        return rows


class Throttle(AxesDatabaseHandler):  # type: ignore[misc]
    """What axes asks before it lets a password be looked at, and tells afterwards."""

    def is_allowed(self, request: HttpRequest, credentials: dict[str, Any] | None = None) -> bool:
        """Count this try, and return whether its password may be looked at."""
        tries = tries_of(request, credentials)
        if tries.are_over(1):
            return False
        tries.count(timezone.now())
        return not tries.are_over(0)

    def user_login_failed(
        self,
        sender: object,  # noqa: ARG002 - axes' signature
        credentials: dict[str, Any],
        request: HttpRequest | None = None,
        **_: object,
    ) -> None:
        """Let the answer say whose tries were too many; they were counted before."""
        if request is not None:
            request.axes_credentials = credentials  # type: ignore[attr-defined]

    def user_logged_in(self, sender: object, request: HttpRequest, user: AbstractBaseUser, **_: object) -> None:  # noqa: ARG002
        """Take back what was counted for this name at this address."""
        tries_of(request, {"username": user.get_username()}).take_back()

    def user_logged_out(self, sender: object, request: HttpRequest, user: object, **_: object) -> None:
        """Nothing is counted of it."""


def tries_of(request: HttpRequest, credentials: dict[str, Any] | None) -> Tries:
    """Return whose tries a request adds to."""
    return Tries((credentials or {}).get("username") or "", client_prefix(request.META.get("REMOTE_ADDR", "")) or None)


def forget() -> int:
    """Forget what counts no more; return how much."""
    forgotten: int = AccessAttempt.objects.filter(attempt_time__lt=timezone.now() - PAUSE).delete()[0]
    return forgotten


def _recent() -> "QuerySet[AccessAttempt]":
    rows: QuerySet[AccessAttempt] = AccessAttempt.objects.filter(attempt_time__gte=timezone.now() - PAUSE)
    return rows
