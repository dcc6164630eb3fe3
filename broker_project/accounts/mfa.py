"""The second factor: one-time codes (TOTP, RFC 6238) and recovery codes; set up, checked, removed.

The algorithm is django-otp's. Its devices are not used: they keep keys and recovery codes in plain text, and throttle
each device by itself and from the first wrong code on.
"""

import base64
import datetime as dt
import hashlib
import re
import secrets
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote, urlencode

import structlog
from django.contrib.admin.models import CHANGE, LogEntry
from django.contrib.auth.models import User
from django.db import transaction
from django_otp.oath import TOTP

from broker_project.accounts.models import RecoveryCode, SecondFactor
from broker_project.core.encryption import DecryptionFailed

SEED_BYTES: Final = 20
"""The size of SHA-1, as RFC 4226 recommends."""
MAX_DRIFT: Final = 1
"""Steps of 30 seconds that the clock of a phone may be off, either way."""
ISSUER: Final = "Broker"
TOTP_CODE: Final = re.compile(r"[0-9]{6}", re.ASCII)

RECOVERY_CODES: Final = 10
RECOVERY_CODE_BYTES: Final = 10
RECOVERY_CODE: Final = re.compile(r"[A-Z2-7]{16}")

MAX_FREE_FAILURES: Final = 4
"""Wrong codes in a row without a pause."""
MIN_PAUSE: Final = dt.timedelta(minutes=1)
MAX_PAUSE: Final = dt.timedelta(hours=6)
"""A year of guessing at this pace finds a code with a probability of 1 in 200."""

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class CodeCheck:
    """The result of checking a code."""

    is_right: bool = False
    """False also if the code was used before."""
    is_recovery_code: bool = False
    locked_until: dt.datetime | None = None
    """The code was not checked, after too many wrong ones; codes are checked again from then on."""


class AlreadySetUp(Exception):
    """The person has a second factor; it has to be removed first."""


def begin(user: User) -> str:
    """Store a seed, valid once it is confirmed, and return it in base32; raise `AlreadySetUp` beside a valid one."""
    seed = base64.b32encode(secrets.token_bytes(SEED_BYTES)).decode()
    with transaction.atomic():
        User.objects.select_for_update().get(pk=user.pk)
        if SecondFactor.objects.filter(user=user, confirmed_at__isnull=False).exists():
            raise AlreadySetUp
        SecondFactor.objects.filter(user=user).delete()
        SecondFactor.objects.create(user=user, seed=seed)
    return seed


def enrolment_url(seed: str, name: str, host: str) -> str:
    """Return what the QR code says: whose codes they are, and the seed."""
    label = quote(f"{ISSUER}:{name}@{host}")
    terms = {"secret": seed, "issuer": f"{ISSUER} {host}", "digits": 6, "period": 30}
    return f"otpauth://totp/{label}?{urlencode(terms, quote_via=quote)}"


def confirm(user: User, code: str, *, now: dt.datetime) -> tuple[CodeCheck, list[str]]:
    """Check a first code; if it is right, let the seed take effect, and return the recovery codes too."""
    with transaction.atomic():
        factor = SecondFactor.objects.select_for_update().filter(user=user, confirmed_at__isnull=True).first()
        check = _checked(factor, code, now)
        if factor is None or not check.is_right:
            return check, []
        factor.confirmed_at = now
        factor.save(update_fields=["confirmed_at"])
        return check, _new_recovery_codes(factor)


def prove(user: User, code: str, *, now: dt.datetime) -> CodeCheck:
    """Check a code and use it up; the row lock makes concurrent tries wait for each other."""
    with transaction.atomic():
        factor = SecondFactor.objects.select_for_update().filter(user=user, confirmed_at__isnull=False).first()
        return _checked(factor, code, now)


def _checked(factor: SecondFactor | None, code: str, now: dt.datetime) -> CodeCheck:
    """Check a code, unless there were too many wrong ones, and note the result; the row is locked."""
    if factor is None:
        return CodeCheck()
    if factor.locked_until and now < factor.locked_until:
        return CodeCheck(locked_until=factor.locked_until)
    check = CodeCheck()
    if (step := accepted_step(code, factor, now)) is not None:
        factor.last_step, check = step, CodeCheck(is_right=True)
    elif (digest := digest_of(code)) and factor.recovery_codes.filter(digest=digest).delete()[0]:
        check = CodeCheck(is_right=True, is_recovery_code=True)
    factor.failures = 0 if check.is_right else factor.failures + 1
    pause = pause_after(factor.failures)
    factor.locked_until = now + pause if pause else None
    factor.save(update_fields=["last_step", "failures", "locked_until"])
    return check


def pause_after(failures: int) -> dt.timedelta | None:
    """Return how long codes are refused after this many wrong ones in a row: 1, 2, 4 … minutes, at most six hours."""
    if failures <= MAX_FREE_FAILURES:
        return None
    doublings = min(failures - MAX_FREE_FAILURES - 1, 9)
    return min(MIN_PAUSE * (1 << doublings), MAX_PAUSE)


def accepted_step(code: str, factor: SecondFactor, now: dt.datetime) -> int | None:
    """Return the step that a code belongs to, if it is later than the last one used; None for a wrong code.

    None too if the seed can no longer be decrypted: recovery codes work without it.
    """
    digits = code.replace(" ", "")
    if not TOTP_CODE.fullmatch(digits):
        return None
    try:
        totp = TOTP(base64.b32decode(factor.seed))
    except DecryptionFailed:
        log.exception("second_factor.cannot_be_opened", person=factor.user_id)
        return None
    totp.time = now.timestamp()
    return totp.t() if totp.verify(int(digits), tolerance=MAX_DRIFT, min_t=factor.last_step + 1) else None


def renew_recovery_codes(user: User) -> list[str]:
    """Return new recovery codes; the previous ones stop working."""
    with transaction.atomic():
        factor = SecondFactor.objects.select_for_update().get(user=user)
        factor.recovery_codes.all().delete()
        return _new_recovery_codes(factor)


def _new_recovery_codes(factor: SecondFactor) -> list[str]:
    """Store the digests of new codes such as `ABCD-EFGH-IJKL-MNOP`, and return the codes."""
    texts = [base64.b32encode(secrets.token_bytes(RECOVERY_CODE_BYTES)).decode() for _ in range(RECOVERY_CODES)]
    codes = ["-".join(re.findall("....", text)) for text in texts]
    RecoveryCode.objects.bulk_create(RecoveryCode(second_factor=factor, digest=digest_of(code)) for code in codes)
    return codes


def digest_of(code: str) -> bytes | None:
    """Return what is stored of a recovery code, in whichever way it is typed; None for other text."""
    plain = code.upper().replace("-", "").replace(" ", "")
    return hashlib.sha256(plain.encode()).digest() if RECOVERY_CODE.fullmatch(plain) else None


def remove(user: User) -> bool:
    """Remove a person's second factor; return whether there was one."""
    return bool(SecondFactor.objects.filter(user=user).delete()[0])


def write_history(person: User, text: str, *, by: int) -> None:
    """Write to the admin's history and the log what was done about a person's second factor, and by which user."""
    people = User.objects.filter(pk=person.pk)
    LogEntry.objects.log_actions(by, people, CHANGE, change_message=text, single_object=True)
    log.info("accounts.changed", person=person.pk, by=by, what=text)
