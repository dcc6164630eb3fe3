"""What publishers are told of failures (behaviour 1.2)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from delivery.outcomes import UNKNOWN, redact_reason

SECRET = "db-7.internal.example"


@pytest.mark.behaviour("1.2")
@pytest.mark.parametrize(
    ("reason", "says"),
    [
        ("", ""),
        ("answered 503", "answered 503"),
        ("delivery 7 was taken", "delivery 7 was taken"),
        ("cancelled over the API", "cancelled over the API"),
        ("not taken in time", "not taken in time"),
        ("unread for 4 days", "unread for 4 days"),
        ("redeliveries used up: not acknowledged 3 times",) * 2,
        ("purged over the API", "purged over the API"),
        (f"unread for 4 days: {SECRET}", "failed"),
        ("The endpoint answered 200 with more than 1,048,576 bytes.",) * 2,
        ("The endpoint answered 200 with fewer bytes than it promised.",) * 2,
        ("The endpoint answered with the status 999, which cannot be passed on.",) * 2,
        (f"no answer: Could not resolve host: {SECRET}", "no answer: the name of its host was not resolved"),
        (f"no answer: Address not allowed ({SECRET})", "no answer: its address is not allowed"),
        (f"no answer: Failed to connect to {SECRET}:80 after 0 ms: Could not connect", "no answer: no connection"),
        (f"no answer: Failed to connect to {SECRET}:80 after 9 ms: Timeout was reached", "no answer: timed out"),
        ("no answer: Operation timed out after 10 milliseconds with 0 bytes received", "no answer: timed out"),
        (f"no answer: SSL: no alternative certificate subject name matches '{SECRET}'", "no answer: TLS failed"),
        ("no answer: TLS connect error: unexpected eof", "no answer: TLS failed"),
        ("no answer: Empty reply from server", f"no answer: {UNKNOWN}"),
        (f"filter failed: {SECRET}", "filter failed"),
        (f"script failed: Error: answered 503 {SECRET}\n", "script failed"),
        (f"script lost: {SECRET}", "script lost"),
        (f"released; filter failed: {SECRET}", "released; filter failed"),
        (f"not taken in time: no answer: Could not resolve host: {SECRET}\n",
         "not taken in time: no answer: the name of its host was not resolved"),
        (f"answered 200 {SECRET}", "failed"),
    ],
)  # fmt: skip
def test_a_publisher_is_told_the_kind_of_failure(reason: str, says: str) -> None:
    assert redact_reason(reason) == says


@pytest.mark.behaviour("1.2")
@given(st.sampled_from(["", "released; ", "no answer: ", "script failed: ", "not taken in time: "]), st.text())
def test_no_text_of_others_goes_through(before: str, text: str) -> None:
    assert "~" not in redact_reason(f"{before}{text}~")
