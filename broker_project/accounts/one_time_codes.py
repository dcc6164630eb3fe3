"""Codes of six digits that change every 30 seconds (TOTP, RFC 6238), as every authenticator app makes them."""

import base64
import hmac
from typing import Final
from urllib.parse import quote, urlencode

from django_otp.oath import hotp

SEED_BYTES: Final = 20
"""As long as the SHA-1 that it goes through, as RFC 4226 has it."""
STEP_SECONDS: Final = 30
DIGITS: Final = 6
DRIFT: Final = 1
"""Steps that the clock of a telephone may be off, either way."""
ISSUER: Final = "Broker"


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
