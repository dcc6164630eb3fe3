"""Reading the heads of answers, whatever endpoints put there."""

import time

import pytest

from delivery.http.headers import values_in

NAMES = ("Content-Type", "Retry-After")


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
    """Return the CPU seconds of reading a head with so many blanks, at best."""
    head = b"HTTP/1.1 200 OK\r\nRetry-After:" + b" " * blanks + b"\x01\r\n\r\n"
    costs = []
    for _ in range(7):
        began = time.process_time()
        assert values_in(head, NAMES) == {}
        costs.append(time.process_time() - began)
    return min(costs)


def test_a_long_line_costs_in_proportion() -> None:
    assert cost_of(60_000) < 50 * cost_of(6_000)  # ten times; with its square it would be a hundred
