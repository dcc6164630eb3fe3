"""A benchmark fails if a broker loses, repeats or reorders messages, and compares like with like."""

import json
from collections.abc import Iterator
from functools import partial

import pytest

from benchmarks.connection import KILOBYTE, NUMBER, SENT, STREAM, body_of, text_of
from benchmarks.figures import Figure, Outcome, at_least, merged
from benchmarks.mailbox_client import FetchPlan, RunningConsumers, fetching
from benchmarks.measure import compared, void_reason
from benchmarks.receipts import ANY, NANOSECONDS, JobLog, Log, Receipts
from benchmarks.scenarios.retries import lulls
from benchmarks.scenarios.topic import ORDERS
from broker_project.stack.load.receiver import Receiver, answer
from broker_project.stack.load.wait import wait_until

LATE = ["1 requests came again, or too late"]
EARLY = ["1 requests came too early"]

NEXT, ACK = "/api/v1/mailboxes/box/next", "/api/v1/mailboxes/box/ack"
NEW, DIED = 1, 2
NOTHING = answer(204)


def received(*numbers: int, sequences: list[int] | None = None, flagged: bool = False, hanging: int = 0) -> list[str]:
    """Return what is wrong when the deliveries 1 to 3 of one stream of subscriber 7 come like this."""
    log = Log(hanging)
    for number, sequence in zip(numbers, sequences or numbers, strict=True):
        flag = "\r\nWebhook-Possible-Duplicate: true" if flagged else ""
        log.record(7, f"POST /00007 HTTP/1.1\r\nWebhook-Sequence: {sequence}{flag}".encode(), body_of(1, number, 0))
    return list(log.report().problems({(7, 1): 3}))


@pytest.mark.parametrize(
    ("numbers", "wrong"),
    [
        ((1, 2, 3), []),
        ((1, 2), ["1 deliveries never arrived"]),
        ((1, 2, 2, 3), LATE),
        ((1, 3, 2), [*LATE, *EARLY]),
        ((1, 3), EARLY),
        ((2, 3), EARLY),
    ],
)
def test_lost_repeated_and_reordered_deliveries_are_reported(numbers: tuple[int, ...], wrong: list[str]) -> None:
    assert received(*numbers) == wrong


def test_only_hanging_subscribers_may_get_a_flagged_repetition() -> None:
    assert received(1, 2, 2, 3, flagged=True) == LATE
    assert received(1, 2, 2, 3, flagged=True, hanging=7) == LATE
    assert received(1, 2, 2, 3, flagged=True, hanging=8) == []
    assert received(1, 2, 2, 3, hanging=8) == LATE


def test_webhook_sequences_must_rise_by_one() -> None:
    assert received(1, 2, 3, sequences=[1, 2, 4]) == EARLY


def test_requests_that_were_not_published_are_reported() -> None:
    log = Log()
    log.record(9, b"POST /00009 HTTP/1.1\r\nWebhook-Sequence: 1\r\n", body_of(1, 1, 0))
    assert list(log.report().problems({})) == ["requests of 1 streams that were not published"]


@pytest.mark.parametrize(
    ("numbers", "wrong"),
    [((3, 1, 2), []), ((3, 1), ["1 deliveries never arrived"]), ((3, 1, 2, 1), ["1 requests came again"])],
)
def test_jobs_come_once_to_any_endpoint_in_any_order(numbers: tuple[int, ...], wrong: list[str]) -> None:
    log = JobLog()
    for endpoint, number in enumerate(numbers):
        log.record(endpoint, b"POST /00000 HTTP/1.1\r\n", body_of(1, number, 0))
    assert list(log.report().problems({(ANY, 1): 3})) == wrong


@pytest.mark.parametrize(("numbers", "wrong"), [((2, 1), []), ((1, 4), ["2 deliveries never arrived"])])
def test_jobs_missing_before_the_highest_are_reported(numbers: tuple[int, ...], wrong: list[str]) -> None:
    log = JobLog()
    for number in numbers:
        log.record(0, b"", body_of(1, number, 0))
    receipts = log.report()
    assert list(receipts.problems(receipts.highest)) == wrong


def test_a_figure_is_void_unless_a_bare_client_is_three_times_as_fast() -> None:
    assert void_reason(1_000, 3_000) == ""
    assert "void" in void_reason(1_000, 2_999)


@pytest.mark.parametrize(
    ("rest", "size"),
    [
        (KILOBYTE, 1024),
        (text_of(300), 300),
        (ORDERS[0], pytest.approx(1024, rel=0.2)),
        (ORDERS[-1], pytest.approx(20_480, rel=0.2)),
    ],
)
def test_bodies_are_json_with_their_numbers_in_place(rest: bytes, size: int) -> None:
    body = body_of(7, 12, 34, rest)
    assert len(body) == size
    assert [int(body[place]) for place in (STREAM, NUMBER, SENT)] == [7, 12, 34]
    assert int(json.loads(body)["number"]) == 12


def test_outcomes_are_merged_by_the_endings_of_their_names() -> None:
    outcomes = {f"_{number}": Outcome([Figure("jobs", number, "/s")], [f"{number}"], f"{number}") for number in (1, 2)}
    assert merged(outcomes) == Outcome([Figure("jobs_1", 1, "/s"), Figure("jobs_2", 2, "/s")], ["1", "2"], "1")


def failed_at(*seconds: float) -> Receipts:
    """Return receipts with requests that were answered 500 at these moments."""
    receipts = Receipts()
    receipts.failed_at.extend(int(moment * NANOSECONDS) for moment in seconds)
    return receipts


@pytest.mark.parametrize(
    ("moments", "idle"),
    [((10.5, 11.5, 12.5), []), ((10.5, 10.6, 12.5), [2]), ((9.9, 10.5, 11.5, 13.0), [3]), ((), [1, 2, 3])],
)
def test_each_part_of_the_time_must_have_retries(moments: tuple[float, ...], idle: list[int]) -> None:
    said = [f"no delivery was retried in part {part} of 3 of the time" for part in idle]
    assert lulls(failed_at(*moments), 10.0, 13.0, 3) == said


def test_variants_are_measured_back_and_forth_and_compared_with_the_first() -> None:
    rates = {"one": [100.0, 120.0], "other": [50.0, 60.0]}
    order: list[str] = []

    def measure(what: str) -> Outcome:
        order.append(what)
        return Outcome([Figure("delivered", rates[what].pop(0), "/s")], [f"{what} was wrong"], "")

    outcome = compared({what: partial(measure, what) for what in rates}, at_least(0.9))
    assert order == ["one", "other", "other", "one"]
    assert [(one.name, round(one.value, 1)) for one in outcome.figures] == [
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
    """A client that waits as long as the parameter says, by default not at all, on an empty mailbox."""
    receiver.on(NEXT, NOTHING)
    receiver.on(ACK, answer(body=b'{"results": [{"code": "acknowledged"}]}'))
    with fetching(
        FetchPlan(receiver.url(""), "token", "box", 1, 1, getattr(request, "param", 0), redelivered_stream=DIED)
    ) as running:
        yield running


@pytest.mark.parametrize("consumers", [20], indirect=True)
def test_a_waiting_client_reports_an_early_empty_answer(consumers: RunningConsumers) -> None:
    wait_until(lambda: any("wanted to wait" in text for text in consumers.report().problems()))


def test_a_client_that_does_not_wait_accepts_empty_answers(consumers: RunningConsumers) -> None:
    wait_until(lambda: consumers.report().empty)
    assert consumers.end().problems() == []


@pytest.mark.parametrize(
    ("stream", "redeliveries", "wrong"),
    [
        (NEW, 0, []),
        (NEW, 1, ["1 times a wrong number of redeliveries"]),
        (DIED, 1, []),
        (DIED, 0, ["1 times a wrong number of redeliveries"]),
        (DIED, 2, ["1 times a wrong number of redeliveries"]),
    ],
)
def test_only_the_redelivered_stream_may_be_redelivered_and_once(
    receiver: Receiver, consumers: RunningConsumers, stream: int, redeliveries: int, wrong: list[str]
) -> None:
    receiver.on(NEXT, answer(body=handed_out(stream, redeliveries)), NOTHING)
    wait_until(lambda: consumers.delivered)
    assert consumers.end().problems() == wrong
