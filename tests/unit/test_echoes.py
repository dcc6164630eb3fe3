"""What is masked in an answer that repeats what its endpoint was sent."""

import json
from urllib.parse import quote

import pytest

from delivery.webhook.redact import without_credentials

MOST = 1024
TOKEN = 'a/b+c="d\\e&f<0123456789'


def shown(answer: str, **headers: str) -> str:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return without_credentials(answer.encode(), named, most=MOST).decode()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("Accept", "application/json"), ("X_Format", "application/json"), ("X_Format", "text/html; charset=utf-8")),
        *(("X_Env", "production"), ("X_Team", "the-blue-team-of-the-north"), ("X_Region", "europe/north")),
        *(("X_Version", "2026-11-20"), ("Authorization", "short"), ("X_Token_Type", "application/json")),
    ],
)
def test_what_is_plainly_no_secret_stays(name: str, value: str) -> None:
    assert shown(f"you sent {value}", **{name: value}) == f"you sent {value}"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("Authorization", "changeme"), ("X_Api_Key", "production"), ("X_Token", "12345678")),
        *(("X_Other", "0123456789abcdef"), ("X_Other", TOKEN), ("X_Other", "aGVsbG8/d29ybGQx")),
    ],
)
def test_credentials_are_masked_by_their_name_or_their_look(name: str, value: str) -> None:
    assert shown(f"you sent {value}.", **{name: value}) == "you sent ***."


@pytest.mark.parametrize(
    "written",
    [
        TOKEN,
        json.dumps(TOKEN)[1:-1],
        json.dumps(TOKEN)[1:-1].replace("/", "\\/"),
        "a/b\\u002Bc=\\u0022d\\\\e\\u0026f\\u003C0123456789",
        "a/b\\u002bc=\\u0022d\\\\e\\u0026f\\u003c0123456789",
        quote(TOKEN, safe=""),
    ],
)
@pytest.mark.parametrize("scheme", ["", "Bearer "])
def test_however_it_is_written_with_its_scheme_and_without(written: str, scheme: str) -> None:
    told = f"[{scheme}{written}]"
    assert "0123456789" not in shown(told, Authorization=f"Bearer {TOKEN}")
    assert shown(told, Authorization=f"Bearer {TOKEN}") in {"[***]", "[Bearer ***]"}


@pytest.mark.parametrize("read", range(4, len(TOKEN)))
def test_of_one_that_was_read_in_part_nothing_stays(read: int) -> None:
    assert shown(f"ends {TOKEN[:read]}", Authorization=f"Bearer {TOKEN}") == "ends ***"


def test_what_masks_make_room_for_is_no_head_of_another() -> None:
    value = "0123456789" * 40
    assert shown(value * 3 + value[:100], X_Token=value) == "***" * 4


def test_it_is_masked_before_it_is_cut() -> None:
    value = "0123456789abcdef"
    assert shown("-" * 1016 + value, X_Token=value) == "-" * 1016 + "***"
    assert shown("-" * 1023 + value, X_Token=value) == "-" * 1023 + "*"
