"""A benchmark of a broker that loses, repeats or reorders fails."""

import pytest

from benchmarks.connection import BODY_BYTES, body_of
from benchmarks.receipts import ANYBODY, JobLog, Log, problems
from benchmarks.throughput import void

LATE = ["1 requests came again, or too late"]
EARLY = ["1 requests came too early"]


def received(*numbers: int, sequences: list[int] | None = None, flagged: bool = False, hanging: int = 0) -> list[str]:
    """Return what is wrong when the deliveries 1 to 3 of one stream of subscriber 7 come like this."""
    log = Log(hanging)
    for number, sequence in zip(numbers, sequences or numbers, strict=True):
        flag = "\r\nWebhook-Possible-Duplicate: true" if flagged else ""
        log.note(7, f"POST /00007 HTTP/1.1\r\nWebhook-Sequence: {sequence}{flag}".encode(), body_of(1, number, 0))
    return list(problems(log.report(), {(7, 1): 3}))


def test_everything_once_and_in_order_is_right() -> None:
    assert received(1, 2, 3) == []


@pytest.mark.parametrize(
    ("numbers", "wrong"),
    [
        ((1, 2), ["1 deliveries never arrived"]),
        ((1, 2, 2, 3), LATE),
        ((1, 3, 2), [*LATE, *EARLY]),
        ((1, 3), EARLY),
        ((2, 3), EARLY),
    ],
)
def test_what_is_lost_or_repeated_or_out_of_order_is_said(numbers: tuple[int, ...], wrong: list[str]) -> None:
    assert received(*numbers) == wrong


def test_only_where_nobody_answers_a_repetition_is_right_and_must_say_so() -> None:
    assert received(1, 2, 2, 3, flagged=True) == LATE
    assert received(1, 2, 2, 3, flagged=True, hanging=7) == LATE
    assert received(1, 2, 2, 3, flagged=True, hanging=8) == []
    assert received(1, 2, 2, 3, hanging=8) == LATE


def test_the_brokers_own_numbers_must_rise_by_one() -> None:
    assert received(1, 2, 3, sequences=[1, 2, 4]) == EARLY


def test_what_nobody_has_published_is_said() -> None:
    log = Log()
    log.note(9, b"POST /00009 HTTP/1.1\r\nWebhook-Sequence: 1\r\n", body_of(1, 1, 0))
    assert list(problems(log.report(), {})) == ["requests of 1 streams that nobody had published"]


@pytest.mark.parametrize(
    ("numbers", "wrong"),
    [
        ((3, 1, 2), []),
        ((3, 1), ["1 deliveries never arrived"]),
        ((3, 1, 2, 1), ["1 requests came again"]),
    ],
)
def test_jobs_come_once_to_whichever_endpoint_in_any_order(numbers: tuple[int, ...], wrong: list[str]) -> None:
    log = JobLog()
    for endpoint, number in enumerate(numbers):
        log.note(endpoint, b"POST /00000 HTTP/1.1\r\n", body_of(1, number, 0))
    assert list(problems(log.report(), {(ANYBODY, 1): 3})) == wrong


@pytest.mark.parametrize(("numbers", "wrong"), [((2, 1), []), ((1, 4), ["2 deliveries never arrived"])])
def test_what_was_passed_over_on_the_way_to_the_highest_is_said(numbers: tuple[int, ...], wrong: list[str]) -> None:
    log = JobLog()
    for number in numbers:
        log.note(0, b"", body_of(1, number, 0))
    receipts = log.report()
    assert list(problems(receipts, receipts.highest)) == wrong


def test_a_report_begins_anew_but_remembers_what_came_last() -> None:
    log = Log()
    log.note(7, b"POST /00007 HTTP/1.1\r\nWebhook-Sequence: 1", body_of(1, 1, 0))
    assert len(log.report().at) == 1
    assert (len(log.report().at), log.report().last) == (0, {(7, 1): 1})


def test_a_figure_is_void_unless_a_bare_client_is_three_times_as_fast() -> None:
    assert void(1_000, 3_000) == ""
    assert "void" in void(1_000, 2_999)


def test_bodies_are_always_of_the_same_size() -> None:
    assert {len(body_of(99, 10**8 - 1, 10**16 - 1)), len(body_of(0, 0, 0))} == {BODY_BYTES}
