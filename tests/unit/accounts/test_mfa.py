"""One-time codes, by the vectors of RFC 6238, and recovery codes."""

import base64
import datetime as dt
from urllib.parse import parse_qs, unquote, urlsplit

import pytest
from django_otp.oath import hotp

from broker_project.accounts.mfa import accepted_step, digest_of, enrolment_url
from broker_project.accounts.models import SecondFactor

SEED = b"12345678901234567890"
SEED_TEXT = "GEZDGNBVGY3TQOJQGEZDGNBVGY3TQOJQ"
RECOVERY_CODE = "ABCD-EFGH-IJKL-MNOP"


def step_of(code: str, *, now: float, after: int = 0) -> int | None:
    factor = SecondFactor(seed=SEED_TEXT, last_step=after)
    return accepted_step(code, factor, dt.datetime.fromtimestamp(now, dt.UTC))


@pytest.mark.parametrize(
    ("seconds", "code"), [(59, "287082"), (1111111109, "081804"), (1234567890, "005 924"), (20000000000, "353130")]
)
def test_codes_are_those_of_the_standard(seconds: int, code: str) -> None:
    assert step_of(code, now=seconds) == seconds // 30


@pytest.mark.parametrize(
    ("code_step", "after", "found"),
    [
        (100, 0, 100),
        (99, 0, 99),
        (101, 0, 101),
        (98, 0, None),
        (102, 0, None),
        (100, 100, None),
        (99, 100, None),
        (101, 100, 101),
        (101, 101, None),
    ],
)
def test_a_code_counts_one_step_early_or_late_and_once(code_step: int, after: int, found: int | None) -> None:
    assert step_of(f"{hotp(SEED, code_step):06}", now=100 * 30, after=after) == found


@pytest.mark.parametrize(
    "code", ["", "0", "00000", "1234567", "\uff11\uff12\uff13\uff14\uff15\uff16", "abcdef", "-1", "1e5"]
)
def test_other_text_is_not_a_code(code: str) -> None:
    assert step_of(code, now=100 * 30) is None


def test_an_app_reads_seed_and_terms_from_the_url() -> None:
    url = urlsplit(enrolment_url(SEED_TEXT, "ann & bob", "broker.example.org"))
    assert (url.scheme, url.netloc, unquote(url.path)) == ("otpauth", "totp", "/Broker:ann & bob@broker.example.org")
    terms = {"secret": [SEED_TEXT], "issuer": ["Broker broker.example.org"], "digits": ["6"], "period": ["30"]}
    assert parse_qs(url.query) == terms
    assert base64.b32decode(SEED_TEXT) == SEED


def test_recovery_codes_are_typed_in_any_way() -> None:
    assert digest_of(RECOVERY_CODE) == digest_of(RECOVERY_CODE.lower().replace("-", " "))
    assert digest_of(RECOVERY_CODE) != digest_of(RECOVERY_CODE.replace("A", "B"))


@pytest.mark.parametrize("code", ["", "AAAA-BBBB-CCCC", "AAAA-BBBB-CCCC-DDD1", "AAAA-BBBB-CCCC-DDDD-EEEE", "É" * 16])
def test_other_text_has_no_digest(code: str) -> None:
    assert digest_of(code) is None
