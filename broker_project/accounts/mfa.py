"""The second factor: one-time codes (TOTP, RFC 6238), recovery codes, enrolment and proof."""

import base64
import datetime as dt
import hashlib
import hmac
import re
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote, urlencode

import structlog
from django.contrib.auth.models import User
from django.db import transaction
from django_otp.oath import hotp

from broker_project.accounts.models import RecoveryCode, SecondFactor
from broker_project.core.encryption import DecryptionFailed

SEED_BYTES: Final = 20
"""As long as the SHA-1 that it goes through, as RFC 4226 has it."""
STEP_SECONDS: Final = 30
DIGITS: Final = 6
DRIFT: Final = 1
"""Steps that the clock of a telephone may be off, either way."""
ISSUER: Final = "Broker"

HOW_MANY: Final = 10
CODE_BYTES: Final = 10
RANDOM_BYTES: Final = HOW_MANY * CODE_BYTES
"""What all of them are made of."""
GROUP: Final = 4

_CODE = re.compile(r"[A-Z2-7]{16}")

log = structlog.get_logger(__name__)

FREE_FAILURES: Final = 4
"""So many in a row have no consequence."""
FIRST_PAUSE: Final = dt.timedelta(minutes=1)
MAX_PAUSE: Final = dt.timedelta(hours=6)
"""A year of guessing at this pace finds a code with a chance of one in two hundred."""
MAX_DOUBLINGS: Final = 9


def step_at(seconds: float) -> int:
    """Return which step it is at so many seconds since 1970."""
    return int(seconds) // STEP_SECONDS


def code_of(seed: bytes, step: int) -> str:
    """Return the code of a step."""
    return f"{hotp(seed, step, DIGITS):0{DIGITS}}"


def step_of(code: str, seed: bytes, *, now: int, after: int) -> int | None:
    """Return which step a code is of, among those about the step `now` and later than `after`; None if of none."""
    about = range(max(now - DRIFT, after + 1), now + DRIFT + 1)
    given = code.encode()
    return next((step for step in about if hmac.compare_digest(code_of(seed, step).encode(), given)), None)


def text_of(seed: bytes) -> str:
    """Return a seed as people type it into an app that cannot take pictures."""
    return base64.b32encode(seed).decode()


def seed_of(text: str) -> bytes:
    """Return the seed that is written so."""
    return base64.b32decode(text)


def enrolment_address(seed: bytes, name: str, host: str) -> str:
    """Return what the picture says: whose codes they are, and the seed."""
    label = quote(f"{ISSUER}:{name}@{host}")
    terms = {"secret": text_of(seed), "issuer": f"{ISSUER} {host}", "digits": DIGITS, "period": STEP_SECONDS}
    return f"otpauth://totp/{label}?{urlencode(terms, quote_via=quote)}"


def codes_of(random_bytes: bytes) -> list[str]:
    """Return codes such as `ABCD-EFGH-IJKL-MNOP`, one for each `CODE_BYTES`."""
    parts = (random_bytes[begin : begin + CODE_BYTES] for begin in range(0, len(random_bytes), CODE_BYTES))
    return [_grouped(base64.b32encode(part).decode()) for part in parts]


def digest_of(code: str) -> bytes | None:
    """Return what is stored of a code, however it is typed; None for what cannot be one."""
    plain = code.upper().replace("-", "").replace(" ", "")
    return hashlib.sha256(plain.encode()).digest() if _CODE.fullmatch(plain) else None


def _grouped(text: str) -> str:
    return "-".join(text[begin : begin + GROUP] for begin in range(0, len(text), GROUP))


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
    doublings = min(failures - FREE_FAILURES - 1, MAX_DOUBLINGS)
    return min(FIRST_PAUSE * (1 << doublings), MAX_PAUSE)


def step_shown(factor: SecondFactor, code: str, now: dt.datetime) -> int | None:
    """Return which step a code is of; None if of none that counts, or if the seed's secret key is gone."""
    try:
        seed = seed_of(factor.seed)
    except DecryptionFailed:
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
