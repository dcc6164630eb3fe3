"""What publishers may say of the time in which a message is to be sent."""

from contextlib import suppress
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from delivery.publish.draft import Draft, check_metadata, durability_of, moment_of, time_of, ttl_of
from delivery.publish.errors import InvalidMetadata

NOW = datetime(2026, 12, 1, tzinfo=UTC)
CHRISTMAS_EVE = datetime(2026, 12, 24, 18, tzinfo=UTC)


@pytest.mark.behaviour("2.10")
@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("1", 1.0),
        ("90", 90.0),
        ("90s", 90.0),
        ("15m", 900.0),
        ("12h", 43_200.0),
        ("4d", 345_600.0),
        ("30d", 2_592_000.0),
        ("2592000", 2_592_000.0),
        ("007", 7.0),
    ],
)
def test_a_time_to_live(text: str, seconds: float) -> None:
    assert ttl_of(text) == seconds


@pytest.mark.behaviour("2.10")
@pytest.mark.parametrize(
    "text", ["", "0", "0s", "-1", "1.5", "1e3", " 1", "1 m", "1w", "m", "31d", "2592001", "9" * 30, "٣", "1\n", "inf"]
)
def test_other_times_to_live_are_refused(text: str) -> None:
    with pytest.raises(InvalidMetadata, match="A time to live is"):
        ttl_of(text)


@pytest.mark.behaviour("2.13")
@pytest.mark.parametrize(
    "text",
    [
        "2026-12-24T18:00:00Z",
        "2026-12-24t18:00:00z",
        "2026-12-24 18:00:00.000Z",
        "2026-12-24T18:00:00.000000000+00:00",
        "2026-12-24T19:30:00+01:30",
        "2026-12-24T10:00:00-08:00",
        "Thu, 24 Dec 2026 18:00:00 GMT",
    ],
)
def test_a_moment(text: str) -> None:
    assert moment_of(text, now=NOW) == CHRISTMAS_EVE


@pytest.mark.behaviour("2.13")
def test_a_moment_may_be_past_and_thirty_days_ahead() -> None:
    assert moment_of("0001-01-01T00:00:00Z", now=NOW) < NOW
    assert moment_of("2026-12-31T00:00:00Z", now=NOW) == NOW + timedelta(days=30)
    with pytest.raises(InvalidMetadata, match="30 days at most"):
        moment_of("2026-12-31T00:00:01Z", now=NOW)


@pytest.mark.behaviour("2.13")
@pytest.mark.parametrize(
    "text",
    [
        *("", "tomorrow", "1798135200", "2026-12-24", "18:00:00Z", "20261224T180000Z"),
        *("2026-12-24T18:00:00", "2026-12-24T18:00Z", "2026-13-24T18:00:00Z", "2026-12-24T25:00:00Z"),
        *("Thu, 24 Dec 2026 18:00:00", "Thu, 24 Nix 2026 18:00:00 GMT", "2026-12-24T18:00:00+99:99"),
        *("0001-01-01T00:00:00+23:59", "9999-12-31T23:59:59-23:59"),
    ],
)
def test_other_moments_are_refused(text: str) -> None:
    with pytest.raises(InvalidMetadata, match="given with its zone"):
        moment_of(text, now=NOW)


@pytest.mark.behaviour("2.10", "2.13")
@pytest.mark.parametrize(
    ("ttl", "not_before", "expected"),
    [
        (None, None, (None, None)),
        ("60", None, (60.0, None)),
        (None, "2026-12-24T18:00:00Z", (None, CHRISTMAS_EVE)),
        ("24d", "2026-12-24T18:00:00Z", (2_073_600.0, CHRISTMAS_EVE)),
        ("1", "2026-12-01T00:00:00Z", (1.0, NOW)),
    ],
)
def test_ttl_and_not_before_are_read_together(ttl: str | None, not_before: str | None, expected: object) -> None:
    assert time_of(ttl, not_before, now=NOW) == expected


@pytest.mark.behaviour("2.10", "2.13")
@pytest.mark.parametrize(("ttl", "not_before"), [("1", "2026-12-01T00:00:01Z"), ("23d", "2026-12-24T18:00:00Z")])
def test_a_ttl_that_ends_before_not_before_is_refused(ttl: str, not_before: str) -> None:
    with pytest.raises(InvalidMetadata, match="ends before it may be sent"):
        time_of(ttl, not_before, now=NOW)


@pytest.mark.behaviour("2.9")
@pytest.mark.parametrize(
    ("text", "expected"), [(None, "guaranteed"), ("guaranteed", "guaranteed"), ("volatile", "volatile")]
)
def test_a_durability(text: str | None, expected: str) -> None:
    assert durability_of(text) == expected


@pytest.mark.behaviour("2.9")
@pytest.mark.parametrize("text", ["", "Volatile", "volatile ", "volatile,guaranteed", "none"])
def test_other_durabilities_are_refused(text: str) -> None:
    with pytest.raises(InvalidMetadata):
        durability_of(text)


@pytest.mark.parametrize(("name", "value"), [("X-A", "x" * 8193), ("X-A", "\u20ac"), ("X-A", "a\n"), ("X A", "")])
def test_an_unusable_header_is_refused_with_what_is_usable(name: str, value: str) -> None:
    check_metadata(Draft("Order", b"", headers=[("X" * 256, "\xe9" * 8192)]))
    with pytest.raises(
        InvalidMetadata, match="256 letters, digits or hyphens, a value up to 8192 characters of Latin-1"
    ):
        check_metadata(Draft("Order", b"", headers=[(name, value)]))


@given(st.text(max_size=40))
def test_any_text_is_read_or_refused(text: str) -> None:
    with suppress(InvalidMetadata):
        assert 1 <= ttl_of(text) <= 2_592_000
    with suppress(InvalidMetadata):
        assert moment_of(text, now=NOW).utcoffset() == timedelta(0)
