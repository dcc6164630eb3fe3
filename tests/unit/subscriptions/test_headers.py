"""Headers that subscribers may add or filter by."""

import pytest
from django.core.exceptions import ValidationError

from subscriptions.headers import MAX_HEADERS, MAX_HEADERS_BYTES, validate_filter_string, validate_headers

NAMES = ["", " ", "X Team", "X-Team ", "X-Team:", "X-Team\n", "X-Team\r\nHost", "X-Téam", "X-T\u0000", "(X)", "X" * 129]
VALUES = ["two\nlines", "two\r\nHost: else", "end\n", "NUL \u0000", "\u007f", "naïve", "\u2028", 1, None, ["v"], {}]

ALLOWED = [
    {},
    {"Authorization": "Bearer secret"},
    {"X-Team": ""},
    {"!#$%&'*+.^_`|~09AZaz-": "any\tvisible ASCII ~"},
    {"X" * 128: "v"},
    {f"X-{number}": "v" for number in range(MAX_HEADERS)},
    {"X-Long": "v" * (MAX_HEADERS_BYTES - len("X-Long"))},
]
RESERVED = """
    Host HOST Content-Length content_length Transfer-Encoding Connection Keep-Alive Upgrade TE Trailer Expect
    Proxy-Connection Proxy-Authorization Cookie CallbackURL webhook-id Webhook-Signature Webhook_Signature
    webhook-anything Broker-Outcome
"""

WHOLE: list[object] = [
    None,
    [],
    "X-Team: blue",
    {f"X-{number}": "v" for number in range(MAX_HEADERS + 1)},
    {"X-Long": "v" * MAX_HEADERS_BYTES},
    {"X-Team": "blue", "x-team": "red"},
]


@pytest.mark.parametrize("headers", ALLOWED)
def test_headers_with_visible_values_are_accepted(headers: dict[str, str]) -> None:
    validate_headers(headers)


@pytest.mark.parametrize("name", RESERVED.split())
def test_reserved_headers_are_refused(name: str) -> None:
    with pytest.raises(ValidationError, match="set by the broker or the connection"):
        validate_headers({name: "v"})


@pytest.mark.parametrize("name", [*NAMES, "X" * 100_000])
def test_invalid_header_names_are_refused(name: str) -> None:
    with pytest.raises(ValidationError, match="is not a header name") as refused:
        validate_headers({name: "v"})
    assert len(str(refused.value)) < 250


@pytest.mark.parametrize("value", VALUES)
def test_invalid_header_values_are_refused(value: object) -> None:
    with pytest.raises(ValidationError, match="visible ASCII"):
        validate_headers({"X-Team": value})


@pytest.mark.parametrize("headers", WHOLE)
def test_too_many_and_duplicate_headers_are_refused(headers: object) -> None:
    with pytest.raises(ValidationError):
        validate_headers(headers)


@pytest.mark.behaviour("2.2")
@pytest.mark.parametrize("text", ["", "proj1008", " a  b ", "50%", "A=b;c\t"])
def test_valid_header_filters_are_accepted(text: str) -> None:
    validate_filter_string(text)


@pytest.mark.behaviour("2.2")
@pytest.mark.parametrize("text", ["caf\u00e9", "a\nb", "a\n", "a\0"])
def test_a_header_filter_that_no_header_can_equal_is_refused(text: str) -> None:
    with pytest.raises(ValidationError, match="visible ASCII"):
        validate_filter_string(text)
