"""A benchmark fails if a broker loses, repeats or reorders messages, and compares like with like."""

import json
from collections.abc import Iterator
from functools import partial

import pytest

from benchmarks.children import RunningConsumers, fetching
from benchmarks.connection import BODY_BYTES, body_of
from benchmarks.figures import Figure, Outcome, at_least
from benchmarks.mailbox_client import Errand
from benchmarks.receipts import ANYBODY, NANOSECONDS, JobLog, Log, Receipts, problems
from benchmarks.scenarios.mailbox import faults
from benchmarks.scenarios.retries import lulls
from benchmarks.throughput import compared, void
from broker_project.stack.load.receiver import Receiver, answer
from broker_project.stack.load.wait import wait_until

LATE = ["1 requests came again, or too late"]
EARLY = ["1 requests came too early"]

NEXT, ACK = "/api/v1/mailboxes/box/next", "/api/v1/mailboxes/box/ack"
STREAM, DIED = 1, 2
NOTHING = answer(204)


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


def failed_at(*seconds: float) -> Receipts:
    """Return receipts with requests that were answered 500 at these moments."""
    receipts = Receipts()
    receipts.failed_at.extend(int(moment * NANOSECONDS) for moment in seconds)
    return receipts


@pytest.mark.parametrize(
    ("moments", "idle"),
    [
        ((10.5, 11.5, 12.5), []),
        ((10.5, 10.6, 12.5), [2]),
        ((9.9, 10.5, 11.5, 13.0), [3]),
        ((), [1, 2, 3]),
    ],
)
def test_something_has_to_be_tried_again_in_each_part_of_the_time(moments: tuple[float, ...], idle: list[int]) -> None:
    said = [f"nothing was tried again apart in part {part} of 3 of the time" for part in idle]
    assert lulls(failed_at(*moments), 10.0, 13.0, 3) == said


def test_variants_are_measured_forth_and_back_and_compared_with_the_first() -> None:
    rates = {"one": [100.0, 120.0], "other": [50.0, 60.0]}
    order: list[str] = []

    def measure(what: str) -> Outcome:
        order.append(what)
        return Outcome([Figure("some", "delivered", rates[what].pop(0), "/s")], [f"{what} was wrong"], "")

    outcome = compared("some", {what: partial(measure, what) for what in rates}, at_least(0.9))
    assert order == ["one", "other", "other", "one"]
    assert [(one.figure, round(one.value, 1)) for one in outcome.figures] == [
        ("delivered, one", 110.0),
        ("delivered, other", 55.0),
        ("spread, one", 18.2),
        ("spread, other", 18.2),
        ("other / one", 0.5),
    ]
    assert sorted(outcome.problems) == ["one was wrong"] * 2 + ["other was wrong"] * 2


def handed_out(stream: int, redeliveries: int) -> bytes:
    """Return the answer to a fetch."""
    message = {"receipt": "one", "body": body_of(stream, 1, 0).decode(), "redeliveries": redeliveries}
    return json.dumps({"messages": [message]}).encode()


@pytest.fixture
def consumers(receiver: Receiver, request: pytest.FixtureRequest) -> Iterator[RunningConsumers]:
    """One who wants to wait as long as the test says, or else not at all; nothing is there yet."""
    receiver.on(NEXT, NOTHING)
    receiver.on(ACK, answer(body=b'{"results": [{"code": "acknowledged"}]}'))
    with fetching(Errand(receiver.url(""), "token", "box", 1, 1, getattr(request, "param", 0), again=DIED)) as running:
        yield running


@pytest.mark.parametrize("consumers", [20], indirect=True)
def test_who_wants_to_wait_and_is_not_let_wait_says_so(consumers: RunningConsumers) -> None:
    wait_until(lambda: any("wanted to wait" in text for text in faults(consumers.report())))


def test_who_does_not_want_to_wait_gets_nothing_without_complaint(consumers: RunningConsumers) -> None:
    wait_until(lambda: consumers.report().in_vain)
    assert faults(consumers.end()) == []


@pytest.mark.parametrize(
    ("stream", "redeliveries", "wrong"),
    [
        (STREAM, 0, []),
        (STREAM, 1, ["1 times a wrong number of redeliveries"]),
        (DIED, 1, []),
        (DIED, 0, ["1 times a wrong number of redeliveries"]),
        (DIED, 2, ["1 times a wrong number of redeliveries"]),
    ],
)
def test_what_others_had_comes_again_once_and_nothing_else_does(
    receiver: Receiver, consumers: RunningConsumers, stream: int, redeliveries: int, wrong: list[str]
) -> None:
    receiver.on(NEXT, answer(body=handed_out(stream, redeliveries)), NOTHING)
    wait_until(lambda: consumers.delivered)
    assert faults(consumers.end()) == wrong
