"""What is passed on of an endpoint's answer, and what a call ends as (behaviour 7.1, 10.3)."""

import pytest
import requests
from hypothesis import given
from hypothesis import strategies as st

from delivery.http.transfer import Answer, RequestNotCompleted
from delivery.sync.answer import PASSED_ON, AnswerTooLarge, Ended, EndpointTimedOut, EndpointUnreachable, ended_by

MOST = 10


def answered(status: int, head: bytes = b"", body: bytes = b"") -> Ended:
    response = requests.Response()
    response.status_code, response._content = status, body
    return ended_by(Answer(None, response, head, 7), most_bytes=MOST)


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
    ended = ended_by(Answer(None, result, b"", 7), most_bytes=MOST)
    assert (type(ended.failure), ended.is_uncertain, ended.status_code) == (failure, was_sent, None)
    assert (ended.status, ended.reason, ended.was_tried) == ("FAILED", "no answer: gone", True)


@pytest.mark.behaviour("7.1")
@pytest.mark.parametrize(("size", "failure"), [(MOST, type(None)), (MOST + 1, AnswerTooLarge)])
def test_an_answer_has_a_largest_size(size: int, failure: type) -> None:
    assert isinstance(answered(200, body=b"x" * size).failure, failure)


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
def test_whatever_the_head_is_nothing_but_text_under_three_names_is_passed_on(lines: list[bytes]) -> None:
    headers = answered(200, b"HTTP/1.1 200 OK\r\n" + b"\r\n".join(lines) + b"\r\n\r\n").headers
    assert headers.keys() <= set(PASSED_ON)
    assert all(value.isascii() and value.isprintable() and value == value.strip(" ") for value in headers.values())


@pytest.mark.behaviour("7.1")
@pytest.mark.parametrize(
    ("line", "headers"),
    [
        (b"Content-Type: application/json; charset=utf-8", {"Content-Type": "application/json; charset=utf-8"}),
        (b"content-encoding:gzip \t", {"Content-Encoding": "gzip"}),
        (b"RETRY-AFTER: Wed, 21 Oct 2026 07:28:00 GMT", {"Retry-After": "Wed, 21 Oct 2026 07:28:00 GMT"}),
        (b"Content-Type:", {}),
        (b"Content-Type: text/\xff", {}),
        (b"X-Content-Type: text/plain", {}),
        (b" Content-Type: text/plain", {}),
        (b"Content-Length: 5", {}),
    ],
)
def test_what_is_passed_on(line: bytes, headers: dict[str, str]) -> None:
    assert answered(200, b"HTTP/1.1 200 OK\r\n" + line + b"\r\n\r\n").headers == headers
