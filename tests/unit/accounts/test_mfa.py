"""One-time codes, by the vectors of RFC 6238, and recovery codes."""

import base64
import re
from urllib.parse import parse_qs, unquote, urlsplit

import pytest

from broker_project.accounts.mfa import (
    code_of,
    codes_of,
    digest_of,
    enrolment_address,
    seed_of,
    step_at,
    step_of,
    text_of,
)

SEED = b"12345678901234567890"


@pytest.mark.parametrize(
    ("seconds", "code"),
    [
        (59, "287082"),
        (1111111109, "081804"),
        (1111111111, "050471"),
        (1234567890, "005924"),
        (2000000000, "279037"),
        (20000000000, "353130"),
    ],
)
def test_codes_are_those_of_the_standard(seconds: int, code: str) -> None:
    assert code_of(SEED, step_at(seconds)) == code


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
def test_a_code_is_of_a_step_about_now_and_of_none_before_the_last(
    code_step: int, after: int, found: int | None
) -> None:
    assert step_of(code_of(SEED, code_step), SEED, now=100, after=after) == found


@pytest.mark.parametrize(
    "code", ["", "0", "00000", "1234567", "\uff11\uff12\uff13\uff14\uff15\uff16", "abcdef", "-1", "1e5"]
)
def test_what_is_no_code_is_of_no_step(code: str) -> None:
    assert step_of(code, SEED, now=100, after=0) is None


def test_an_app_reads_seed_and_terms_out_of_the_address() -> None:
    address = urlsplit(enrolment_address(SEED, "ann & bob", "broker.example.org"))
    assert (address.scheme, address.netloc, unquote(address.path)) == (
        "otpauth",
        "totp",
        "/Broker:ann & bob@broker.example.org",
    )
    assert parse_qs(address.query) == {
        "secret": ["GEZDGNBVGY3TQOJQGEZDGNBVGY3TQOJQ"],
        "issuer": ["Broker broker.example.org"],
        "digits": ["6"],
        "period": ["30"],
    }
    assert seed_of(text_of(SEED)) == SEED


def test_recovery_codes_are_typed_in_any_way() -> None:
    first, second = codes_of(bytes(range(20)))
    assert re.fullmatch(r"([A-Z2-7]{4}-){3}[A-Z2-7]{4}", first)
    assert base64.b32decode(second.replace("-", "")) == bytes(range(10, 20))
    assert digest_of(first) == digest_of(first.lower().replace("-", " ")) != digest_of(second)


@pytest.mark.parametrize("code", ["", "AAAA-BBBB-CCCC", "AAAA-BBBB-CCCC-DDD1", "AAAA-BBBB-CCCC-DDDD-EEEE", "É" * 16])
def test_what_cannot_be_a_recovery_code_has_no_digest(code: str) -> None:
    assert digest_of(code) is None
