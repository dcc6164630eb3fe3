"""Answers of endpoints: their heads, what is masked, what is passed on."""

import json
import time
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from delivery.http.transfer import Answer, RequestNotCompleted, values_in
from delivery.sync.answer import PASSED_ON, Ended, EndpointTimedOut, EndpointUnreachable, ended_by
from delivery.webhook.request import without_credentials

NAMES = ("Content-Type", "Retry-After")

MAX_ECHO_BYTES = 1024
TOKEN = 'a/b+c="d\\e&f<0123456789'

MAX_ANSWER_BYTES = 10


@pytest.mark.parametrize(
    ("lines", "values"),
    [
        (b"", {}),
        (b"Content-Type: text/plain\r\n", {"Content-Type": "text/plain"}),
        (b"content-type:text/plain\r\nRETRY-AFTER: \t7 \r\n", {"Content-Type": "text/plain", "Retry-After": "7"}),
        (b"Content-Type: a\nContent-Type: b\n", {"Content-Type": "a"}),
        (b"Content-Type: \r\nContent-Type: b\r\n", {"Content-Type": "b"}),
        (b"Content-Type: a\x01\r\n", {}),
        (b"Content-Type: \xe4\r\n", {}),
        (b"Content-Type : a\r\nX-Content-Type: a\r\nContent-Type\r\n", {}),
        (b"Content-Type: " + b"x" * 1024 + b"\r\n", {"Content-Type": "x" * 1024}),
        (b"Content-Type: " + b"x" * 1025 + b"\r\n", {}),
        (b"Location: /?\r\n Content-Type: folded\r\n", {}),
    ],
)
def test_values(lines: bytes, values: dict[str, str]) -> None:
    assert values_in(b"HTTP/1.1 200 OK\r\n" + lines + b"\r\n", NAMES) == values


def cost_of(blanks: int) -> float:
    """Return the CPU seconds of reading a head with this many blanks, at best."""
    head = b"HTTP/1.1 200 OK\r\nRetry-After:" + b" " * blanks + b"\x01\r\n\r\n"
    costs = []
    for _ in range(7):
        began = time.process_time()
        assert values_in(head, NAMES) == {}
        costs.append(time.process_time() - began)
    return min(costs)


def test_a_long_line_costs_in_proportion() -> None:
    assert cost_of(60_000) < 50 * cost_of(6_000)  # ten times; with its square it would be a hundred


def shown(answer: str, **headers: str) -> str:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return without_credentials(answer.encode(), named, max_bytes=MAX_ECHO_BYTES).decode()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("Accept", "application/json"), ("X_Format", "application/json"), ("X_Format", "text/html; charset=utf-8")),
        *(("X_Env", "production"), ("X_Team", "the-blue-team-of-the-north"), ("X_Region", "europe/north")),
        *(("X_Version", "2026-11-20"), ("Authorization", "short"), ("X_Token_Type", "application/json")),
    ],
)
def test_plain_values_stay(name: str, value: str) -> None:
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
def test_secrets_are_masked_in_any_encoding(written: str, scheme: str) -> None:
    echoed = f"[{scheme}{written}]"
    assert "0123456789" not in shown(echoed, Authorization=f"Bearer {TOKEN}")
    assert shown(echoed, Authorization=f"Bearer {TOKEN}") in {"[***]", "[Bearer ***]"}


@pytest.mark.parametrize("read", range(4, len(TOKEN)))
def test_a_truncated_secret_is_masked(read: int) -> None:
    assert shown(f"ends {TOKEN[:read]}", Authorization=f"Bearer {TOKEN}") == "ends ***"


def test_masks_leave_no_part_of_another_secret() -> None:
    value = "0123456789" * 40
    assert shown(value * 3 + value[:100], X_Token=value) == "***" * 4


def test_secrets_are_masked_before_the_text_is_cut() -> None:
    value = "0123456789abcdef"
    assert shown("-" * 1016 + value, X_Token=value) == "-" * 1016 + "***"
    assert shown("-" * 1023 + value, X_Token=value) == "-" * 1023 + "*"


def answered(status: int, head: bytes = b"", body: bytes = b"") -> Ended:
    return ended_by(Answer(None, status, head, body, 7), max_bytes=MAX_ANSWER_BYTES)


@pytest.mark.behaviour("10.3")
@pytest.mark.parametrize(
    ("status", "ends_as", "is_passed_on"),
    [
        (101, "FAILED", False),
        (199, "FAILED", False),
        (200, "DELIVERED", True),
        (299, "DELIVERED", True),
        (300, "FAILED", True),
        (404, "FAILED", True),
        (503, "FAILED", True),
        (599, "FAILED", True),
        (600, "FAILED", False),
        (999, "FAILED", False),
    ],
)
def test_a_status_ends_a_call(status: int, ends_as: str, is_passed_on: bool) -> None:
    ended = answered(status)
    assert (ended.status, ended.failure is None, ended.status_code) == (ends_as, is_passed_on, status)


@pytest.mark.behaviour("7.2")
@pytest.mark.parametrize(
    ("timed_out", "was_sent", "failure"),
    [(True, True, EndpointTimedOut), (False, True, EndpointUnreachable), (False, False, EndpointUnreachable)],
)
def test_no_answer_is_late_or_broken(timed_out: bool, was_sent: bool, failure: type[Exception]) -> None:
    result = RequestNotCompleted("gone", was_sent=was_sent, timed_out=timed_out)
    ended = ended_by(Answer(None, 0, b"", b"", 7, result), max_bytes=MAX_ANSWER_BYTES)
    assert (type(ended.failure), ended.is_uncertain, ended.status_code) == (failure, was_sent, None)
    assert (ended.status, ended.reason, ended.was_tried) == ("FAILED", "no answer: gone", True)


HEAD_LINES = st.lists(
    st.one_of(
        st.binary(max_size=30),
        st.tuples(
            st.sampled_from([*PASSED_ON, "content-TYPE", "Location", "Set-Cookie", "X-Content-Type"]),
            st.sampled_from([":", ": ", " :", ":\t"]),
            st.binary(max_size=20),
        ).map(lambda line: line[0].encode() + line[1].encode() + line[2]),
    )
)


@pytest.mark.behaviour("7.1")
@given(HEAD_LINES)
def test_only_text_under_three_names_is_passed_on(lines: list[bytes]) -> None:
    headers = answered(200, b"HTTP/1.1 200 OK\r\n" + b"\r\n".join(lines) + b"\r\n\r\n").headers
    assert headers.keys() <= set(PASSED_ON)
    assert all(value.isascii() and value.isprintable() and value == value.strip(" ") for value in headers.values())
