"""Second factors come and go: begun with a new seed, confirmed by a first code, removed, or reset by somebody else."""

import datetime as dt

from django.contrib.auth.models import User
from django.db import transaction

from broker_project.accounts.mfa import step_shown
from broker_project.accounts.models import RecoveryCode, SecondFactor
from broker_project.accounts.one_time_codes import text_of
from broker_project.accounts.recovery_codes import codes_of, digest_of


class HasOne(Exception):
    """There is a second factor that counts; it is removed first."""


def begin(user: User, *, random_bytes: bytes) -> bytes:
    """Store a new seed, which does not count yet, in the place of one that never did; return it.

    Raises:
        HasOne: the person has a second factor.

    """
    with transaction.atomic():
        User.objects.select_for_update().get(pk=user.pk)
        if SecondFactor.objects.filter(user=user, confirmed_at__isnull=False).exists():
            raise HasOne
        SecondFactor.objects.filter(user=user).delete()
        SecondFactor.objects.create(user=user, seed=text_of(random_bytes))
    return random_bytes


def confirm(user: User, code: str, *, recovery: bytes, now: dt.datetime) -> list[str] | None:
    """Let the seed count if the code is of it; return the recovery codes, None if it is not."""
    with transaction.atomic():
        factor = SecondFactor.objects.select_for_update().filter(user=user, confirmed_at__isnull=True).first()
        step = step_shown(factor, code, now) if factor else None
        if factor is None or step is None:
            return None
        factor.last_step, factor.confirmed_at = step, now
        factor.save(update_fields=["last_step", "confirmed_at"])
        return _give_recovery_codes(factor, recovery)


def renew_recovery_codes(user: User, *, recovery: bytes) -> list[str]:
    """Return new recovery codes; the former count no more."""
    with transaction.atomic():
        factor = SecondFactor.objects.select_for_update().get(user=user)
        factor.recovery_codes.all().delete()
        return _give_recovery_codes(factor, recovery)


def remove(user: User) -> bool:
    """Take somebody's second factor away; return whether there was one."""
    deleted, _ = SecondFactor.objects.filter(user=user).delete()
    return bool(deleted)


def _give_recovery_codes(factor: SecondFactor, random_bytes: bytes) -> list[str]:
    codes = codes_of(random_bytes)
    RecoveryCode.objects.bulk_create(RecoveryCode(second_factor=factor, digest=digest_of(code)) for code in codes)
    return codes
