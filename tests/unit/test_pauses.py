"""How long a delivery or a line waits (behaviour 4.6 to 4.8), and what `Retry-After` asks for."""

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from delivery.http.headers import retry_after_seconds
from delivery.retry import aside_pause, hold_pause

NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("tries", "seconds"), [(1, 1), (2, 2), (3, 4), (4, 8), (5, 16), (6, 32), (7, 60), (8, 60), (1_000_000, 60)]
)
def test_what_is_set_aside_waits_twice_as_long_each_time(tries: int, seconds: float) -> None:
    assert aside_pause(tries) == seconds


@pytest.mark.parametrize(
    ("failures", "retry_after", "chance", "seconds"),
    [
        (1, None, 0.0, 1),
        (1, None, 1.0, 1),
        (2, None, 0.0, 2),
        (2, None, 1.0, 1.6),
        (7, None, 0.0, 60),
        (7, None, 0.5, 54),
        (10**9, None, 1.0, 48),
        (1, 7.0, 0.5, 7),
        (9, 7.0, 0.5, 7),
        (1, 0.0, 0.5, 1),
        (1, 299.0, 0.5, 299),
        (1, 301.0, 0.5, 300),
        (1, float("inf"), 0.5, 300),
    ],
)
def test_hold_pause(failures: int, retry_after: float | None, chance: float, seconds: float) -> None:
    assert hold_pause(failures, retry_after=retry_after, chance=chance) == pytest.approx(seconds)


@given(st.integers(1, 10**6), st.none() | st.floats(0, 1e12), st.floats(0, 1))
def test_a_pause_is_never_shorter_than_a_second_nor_longer_than_five_minutes(
    failures: int, retry_after: float | None, chance: float
) -> None:
    assert 1.0 <= hold_pause(failures, retry_after=retry_after, chance=chance) <= 300.0


@pytest.mark.parametrize(
    ("head", "seconds"),
    [
        (b"HTTP/1.1 503 -\r\n\r\n", None),
        (b"HTTP/1.1 503 -\r\nRetry-After: 120\r\n\r\n", 120),
        (b"HTTP/1.1 503 -\r\nretry-after:7\r\nX: y\r\n\r\n", 7),
        (b"HTTP/1.1 503 -\nRETRY-AFTER: \t 7 \t\n\n", 7),
        (b"HTTP/1.1 503 -\r\nRetry-After: Fri, 20 Nov 2026 12:00:30 GMT\r\n\r\n", 30),
        (b"HTTP/1.1 503 -\r\nRetry-After: Fri, 20 Nov 2026 13:00:30 +0100\r\n\r\n", 30),
        (b"HTTP/1.1 503 -\r\nRetry-After: Fri, 20 Nov 2026 12:00:30\r\n\r\n", 30),
        (b"HTTP/1.1 503 -\r\nRetry-After: Fri, 20 Nov 2026 11:00:00 GMT\r\n\r\n", 0),
        (b"HTTP/1.1 503 -\r\nRetry-After: -1\r\n\r\n", None),
        (b"HTTP/1.1 503 -\r\nRetry-After: 1.5\r\n\r\n", None),
        (b"HTTP/1.1 503 -\r\nRetry-After: soon\r\n\r\n", None),
        (b"HTTP/1.1 503 -\r\nRetry-After:\r\n\r\n", None),
        (b"HTTP/1.1 503 -\r\nRetry-After: \xb2\r\n\r\n", None),
        (b"HTTP/1.1 503 -\r\nX-Retry-After: 5\r\n\r\n", None),
        (b"HTTP/1.1 503 -\r\nRetry-After: " + b"9" * 64 + b"\r\n\r\n", 999999999),
        (b"HTTP/1.1 503 -\r\nRetry-After: " + b"9" * 65 + b"\r\n\r\n", None),
        (b"HTTP/1.1 503 -\r\nRetry-After: 1 Jan 99999999999999999999 00:00:00 GMT\r\n\r\n", None),
        (b"HTTP/1.1 503 -\r\nRetry-After: 1 Jan 2026 00:00:00 -99999999999999999999\r\n\r\n", None),
        (b"HTTP/1.1 503 -\r\nRetry-After: 5\r\nRetry-After: 9\r\n\r\n", 5),
    ],
)
def test_retry_after(head: bytes, seconds: float | None) -> None:
    assert retry_after_seconds(head, at=NOON) == seconds


WORDS = "0 1 32 99 Mon, Feb Sep 2026 9999 99999999999999999999 : 0:0:0 24:00 -0000 +2400 +9999 GMT EST Z ( ) , ; -"
DATE_PARTS = st.sampled_from(WORDS.split())


@given(st.lists(DATE_PARTS, max_size=8).map(" ".join) | st.text(st.characters(min_codepoint=32, max_codepoint=126)))
def test_nothing_an_endpoint_asks_for_breaks_the_line(text: str) -> None:
    seconds = retry_after_seconds(b"HTTP/1.1 503 -\r\nRetry-After: " + text.encode() + b"\r\n\r\n", at=NOON)
    assert seconds is None or seconds >= 0
