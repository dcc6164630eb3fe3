"""Proving who one is by a code: of the app, where each counts once, or a recovery code.

Wrong ones count for the person: only who has the password gets this far, so nobody else can lock a person out.
"""

import datetime as dt
from dataclasses import dataclass
from typing import Final

import structlog
from django.contrib.auth.models import User
from django.db import transaction

from broker_project.accounts.models import SecondFactor
from broker_project.accounts.one_time_codes import seed_of, step_at, step_of
from broker_project.accounts.recovery_codes import digest_of
from broker_project.core.keyring import CannotBeOpened

log = structlog.get_logger(__name__)

FREE_FAILURES: Final = 4
"""So many in a row have no consequence."""
FIRST_PAUSE: Final = dt.timedelta(minutes=1)
LONGEST_PAUSE: Final = dt.timedelta(hours=6)
"""A year of guessing at this pace finds a code with a chance of one in two hundred."""
MOST_DOUBLINGS: Final = 9


@dataclass(frozen=True, slots=True)
class Proved:
    """The code was right."""

    with_recovery_code: bool


@dataclass(frozen=True, slots=True)
class Wrong:
    """It was not, or has been used."""


@dataclass(frozen=True, slots=True)
class TooOften:
    """It was not looked at, after so many wrong ones."""

    free_at: dt.datetime


Proof = Proved | Wrong | TooOften


def prove(user: User, code: str, *, now: dt.datetime) -> Proof:
    """Take a code of somebody's second factor; of many at once one after the other is looked at."""
    with transaction.atomic():
        factor = SecondFactor.objects.select_for_update().filter(user=user, confirmed_at__isnull=False).first()
        if factor is None:
            return Wrong()
        if factor.free_at and now < factor.free_at:
            return TooOften(factor.free_at)
        proof = _take(factor, code, now)
        _record(factor, proof, now)
        return proof


def pause_after(failures: int) -> dt.timedelta | None:
    """Return how long no code is looked at after so many wrong ones in a row: 1, 2, 4 … minutes, six hours at most."""
    if failures <= FREE_FAILURES:
        return None
    doublings = min(failures - FREE_FAILURES - 1, MOST_DOUBLINGS)
    return min(FIRST_PAUSE * (1 << doublings), LONGEST_PAUSE)


def step_shown(factor: SecondFactor, code: str, now: dt.datetime) -> int | None:
    """Return which step a code is of; None if of none that counts, or if the seed's secret key is gone."""
    try:
        seed = seed_of(factor.seed)
    except CannotBeOpened:
        log.exception("second_factor.cannot_be_opened", person=factor.user_id)
        return None
    return step_of(code.replace(" ", ""), seed, now=step_at(now.timestamp()), after=factor.last_step)


def _take(factor: SecondFactor, code: str, now: dt.datetime) -> Proved | Wrong:
    step = step_shown(factor, code, now)
    if step is not None:
        factor.last_step = step
        return Proved(with_recovery_code=False)
    digest = digest_of(code)
    used = factor.recovery_codes.filter(digest=digest).delete()[0] if digest else 0
    return Proved(with_recovery_code=True) if used else Wrong()


def _record(factor: SecondFactor, proof: Proved | Wrong, now: dt.datetime) -> None:
    factor.failures = 0 if isinstance(proof, Proved) else factor.failures + 1
    pause = pause_after(factor.failures)
    factor.free_at = now + pause if pause else None
    factor.save(update_fields=["last_step", "failures", "free_at"])
