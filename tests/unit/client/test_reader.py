"""The reader: acknowledge, extend, return, stop, and survive a failing broker."""

import signal
import threading
from contextlib import nullcontext
from typing import Any

import pytest
import requests
from hypothesis import given
from hypothesis import strategies as st

from broker_client import BrokerError, Mailbox, MailboxReader, Message
from broker_client.in_flight import InFlightMessages
from broker_client.reader import MAX_PAUSE_SECONDS, MIN_POLL_SECONDS, Backoff, Consumer, empty_poll_pause, retry_pause
from broker_project.stack.load.wait import PATIENCE_SECONDS, wait_until
from tests.support.mailbox_server import (
    LOST_ANSWER,
    MAILBOX_NAME,
    MAILBOX_TOKEN,
    READ_TIMEOUT_SECONDS,
    PlayedFailure,
    PlayedMailbox,
    StoppableHandler,
    running_mailbox_server,
    running_reader,
)

NOWHERE = "http://127.0.0.1:9"

FORBIDDEN = PlayedFailure(403, {"title": "Forbidden"})
"""Ends a client that would call forever."""

SOON = {"Retry-After": "0"}


@pytest.mark.parametrize(
    ("terms", "said"),
    [
        ({"max_messages": 0}, "max_messages is 0, and must be from 1 to 100"),
        ({"max_messages": 101}, "max_messages is 101, and must be from 1 to 100"),
        ({"wait_seconds": -0.5}, r"wait_seconds is -0\.5, and must be from 0 to 20"),
        ({"wait_seconds": 20.5}, r"wait_seconds is 20\.5, and must be from 0 to 20"),
        ({"wait_seconds": float("nan")}, "wait_seconds is nan, and must be from 0 to 20"),
        ({"consumers": 0}, "consumers is 0, and must be at least 1"),
        ({"max_messages": 1, "wait_seconds": 0}, None),
        ({"max_messages": 100, "wait_seconds": 20}, None),
    ],
)
def test_a_reader_that_could_not_read_is_refused_at_once(terms: dict[str, int], said: str | None) -> None:
    with pytest.raises(ValueError, match=said) if said else nullcontext():
        MailboxReader(Mailbox(NOWHERE, MAILBOX_NAME, MAILBOX_TOKEN), print, **terms)


def test_a_message_is_acknowledged_after_its_handler(played: PlayedMailbox, work: StoppableHandler) -> None:
    played.put(b"1")
    with running_reader(played, work):
        assert work.started.wait(PATIENCE_SECONDS)
        assert played.said("ack") == []
        work.may_end.set()
        played.wait_for(lambda: played.acknowledged == [1])


def test_messages_are_worked_off_in_order_and_acknowledged_together(played: PlayedMailbox) -> None:
    begun: list[int] = []
    played.put(*[b"{}"] * 25)
    with running_reader(played, lambda message: begun.append(message.message_id), max_messages=10):
        played.wait_for(lambda: len(played.acknowledged) == 25)
    assert begun == played.acknowledged == [*range(1, 26)]
    assert len(played.said("next")) <= 4


def test_messages_are_extended_while_the_handler_works(played: PlayedMailbox, work: StoppableHandler) -> None:
    played.seconds = READ_TIMEOUT_SECONDS
    played.put(b"1", b"2")
    with running_reader(played, work):
        played.wait_for(lambda: len(played.said("extend")) >= 2)
        work.may_end.set()
        played.wait_for(lambda: played.acknowledged == [1, 2])
    assert played.said("extend")[0] == {"receipts": ["receipt-1", "receipt-2"]}


def test_a_message_comes_again_when_its_handler_raises(played: PlayedMailbox, caplog: pytest.LogCaptureFixture) -> None:
    seen: list[int] = []

    def fail_once(message: Message) -> None:
        seen.append(message.message_id)
        if seen == [1]:
            raise ValueError("the first time")

    played.put(b"1")
    with running_reader(played, fail_once):
        played.wait_for(lambda: played.acknowledged == [1])

    assert seen == [1, 1]
    assert played.said("nack") == [{"receipts": ["receipt-1"], "not_attempted": False}]
    assert "mailbox.handler_failed id=dlv_1" in caplog.text


def test_several_consumers_work_side_by_side(played: PlayedMailbox) -> None:
    together = threading.Barrier(4, timeout=PATIENCE_SECONDS)
    played.put(*[b"{}"] * 4)
    with running_reader(played, lambda _: together.wait(), max_messages=1, consumers=4):
        played.wait_for(lambda: sorted(played.acknowledged) == [1, 2, 3, 4])


class RestRecorder(InFlightMessages):
    """Notes how long it should rest, does not, and is closed after a while."""

    def __init__(self) -> None:
        super().__init__()
        self.rests: list[float] = []

    def rest(self, seconds: float) -> None:
        self.rests.append(seconds)
        if len(self.rests) == 3:
            self.close()


@pytest.mark.parametrize(
    ("trouble", "least", "longest"),
    [
        (None, 0.0, 1.0),
        (PlayedFailure(204), 0.0, 1.0),
        (PlayedFailure(204, headers={"Retry-After": "0"}), 0.0, 1.0),
        (PlayedFailure(204, headers={"Retry-After": "2"}), 2.0, 3.0),
        (PlayedFailure(204, headers={"Retry-After": "3600"}), 10.0, 10.0),
        (PlayedFailure(503, {"title": "Later"}, {"Retry-After": "0"}), 0.25, 2.0),
        (PlayedFailure(503, {"title": "Later"}, {"Retry-After": "7"}), 7.0, 7.0),
        (PlayedFailure(503, {"title": "Later"}, {"Retry-After": "3600"}), 10.0, 10.0),
    ],
)
def test_a_consumer_pauses_after_each_empty_call(trouble: PlayedFailure | None, least: float, longest: float) -> None:
    in_flight = RestRecorder()
    with running_mailbox_server() as played:
        played.troubles["next"].extend([trouble or PlayedFailure(204)] * 3 + [FORBIDDEN] * 20)
        Consumer(
            Mailbox(played.url, MAILBOX_NAME, MAILBOX_TOKEN), lambda _: None, in_flight, max_messages=10, wait_seconds=0
        ).run()
    assert len(played.calls) == len(in_flight.rests) == 3
    assert all(least <= seconds <= longest for seconds in in_flight.rests), in_flight.rests


@given(st.floats(0, 100), st.none() | st.floats(0, 1e9))
def test_an_empty_mailbox_is_asked_again_when_the_broker_wants(took: float, wanted: float | None) -> None:
    rest = empty_poll_pause(took, wanted)
    assert max(0.0, MIN_POLL_SECONDS - took, min(wanted or 0.0, MAX_PAUSE_SECONDS)) <= rest <= MAX_PAUSE_SECONDS
    assert rest <= max(MIN_POLL_SECONDS, 1.5 * (wanted or 0.0))


def test_pauses_of_consumers_differ() -> None:
    assert len({empty_poll_pause(0.0, 1.0) for _ in range(100)}) > 1


@pytest.mark.parametrize("wanted", [None, 0.0, 3.0, 3600.0])
def test_an_unreachable_broker_is_called_again_after_a_bounded_pause(wanted: float | None) -> None:
    backoff = Backoff(0.5)
    seconds = [retry_pause(BrokerError(503, "Later", wanted), backoff) for _ in range(20)]
    least = min(wanted or 0.25, MAX_PAUSE_SECONDS)
    assert all(least <= one <= MAX_PAUSE_SECONDS for one in seconds), seconds
    assert retry_pause(requests.ConnectionError(), backoff) >= MAX_PAUSE_SECONDS / 2


@pytest.mark.parametrize(
    "trouble", [LOST_ANSWER, PlayedFailure(503, {"title": "Later"}, SOON), PlayedFailure(429, {}, SOON)]
)
@pytest.mark.parametrize("what", ["ack", "nack", "extend", "next"])
def test_a_call_that_fails_is_made_again(played: PlayedMailbox, what: str, trouble: PlayedFailure | None) -> None:
    begun: list[int] = []

    def work(message: Message) -> None:
        begun.append(message.message_id)
        if what == "extend":
            played.wait_for(lambda: len(played.said("extend")) >= 2)
        if what == "nack" and len(begun) == 1:
            raise ValueError("returned")

    played.seconds = 3.0 if what == "extend" else 30.0
    played.troubles[what].append(trouble)
    played.put(b"1", b"2")
    with running_reader(played, work, max_messages=1):
        played.wait_for(lambda: len(played.said(what)) >= 2)
        if what != "next" or trouble is not LOST_ANSWER:
            played.wait_for(lambda: sorted(played.acknowledged) == [1, 2])


def test_a_message_with_a_stale_receipt_is_not_started(
    played: PlayedMailbox, work: StoppableHandler, caplog: pytest.LogCaptureFixture
) -> None:
    played.seconds = READ_TIMEOUT_SECONDS
    played.put(b"1", b"2")
    with running_reader(played, work):
        assert work.started.wait(PATIENCE_SECONDS)
        played.take_back("receipt-2")
        played.wait_for(lambda: {"receipts": ["receipt-1"]} in played.said("extend"))
        work.may_end.set()
        played.wait_for(lambda: played.acknowledged)
    assert work.begun == played.acknowledged == [1]
    assert "mailbox.receipt_invalid id=dlv_2 call=extend code=stale_receipt" in caplog.text


def test_a_message_that_timed_out_in_the_handler_is_still_acknowledged(
    played: PlayedMailbox, work: StoppableHandler, caplog: pytest.LogCaptureFixture
) -> None:
    timed_out = {"receipt": "receipt-1", "status": 409, "code": "timed_out"}
    played.seconds = READ_TIMEOUT_SECONDS
    played.troubles["extend"].append(PlayedFailure(200, {"results": [timed_out]}))
    played.put(b"1")
    with running_reader(played, work):
        played.wait_for(lambda: played.said("extend"))
        wait_until(lambda: "mailbox.receipt_invalid id=dlv_1 call=extend code=timed_out" in caplog.text)
        work.may_end.set()
        played.wait_for(lambda: played.acknowledged == [1])


def test_no_call_about_what_is_in_hand_takes_longer_than_a_third_of_what_is_left(played: PlayedMailbox) -> None:
    patience: list[float] = []

    class Session(requests.Session):
        def request(self, *args: Any, **options: Any) -> requests.Response:
            if not args[1].endswith("/next"):
                patience.append(sum(options["timeout"]))
            return super().request(*args, **options)

    played.seconds = 12.0
    played.put(b"1", b"2")
    with running_reader(played, lambda _: None, sessions=Session):
        played.wait_for(lambda: sorted(played.acknowledged) == [1, 2])
    assert patience
    assert max(patience) <= played.seconds / 3


def test_a_handler_may_ask_whether_its_message_is_still_its_own(played: PlayedMailbox, mailbox: Mailbox) -> None:
    held: list[bool] = []

    def work(message: Message) -> None:
        held.append(reader.holds(message))
        played.take_back(message.receipt)
        wait_until(lambda: not reader.holds(message))
        held.append(reader.holds(message))

    played.seconds = READ_TIMEOUT_SECONDS
    played.put(b"1")
    reader = MailboxReader(mailbox, work, wait_seconds=0)
    reader.start()
    wait_until(lambda: len(held) == 2)
    reader.stop()
    reader.join()

    assert held == [True, False]


@pytest.mark.parametrize("what", ["next", "ack"])
def test_a_reader_refused_for_good_ends_and_says_why(played: PlayedMailbox, mailbox: Mailbox, what: str) -> None:
    played.troubles[what].append(PlayedFailure(403, {"title": "Forbidden"}))
    played.put(b"1")
    reader = MailboxReader(mailbox, lambda _: None, wait_seconds=0, consumers=3)
    with pytest.raises(BrokerError, match="403: Forbidden"):
        reader.run()


@pytest.mark.parametrize("address", ["127.0.0.1:9", "broker.example", "http://"])
def test_a_reader_with_an_address_that_is_none_ends_and_says_so(address: str) -> None:
    with pytest.raises(requests.RequestException) as refused:
        Mailbox(address, MAILBOX_NAME, MAILBOX_TOKEN).fetch()
    with pytest.raises(type(refused.value)):
        retry_pause(refused.value, Backoff(0.5))


def test_a_consumer_that_cannot_be_started_ends_the_others(
    played: PlayedMailbox, mailbox: Mailbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[threading.Thread] = []
    start = threading.Thread.start

    def start_two(thread: threading.Thread) -> None:
        if len(threads) == 2:
            raise RuntimeError("can't start new thread")
        threads.append(thread)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_two)
    played.troubles["next"].extend([PlayedFailure(204)])
    with pytest.raises(RuntimeError, match="new thread"):
        MailboxReader(mailbox, lambda _: None, wait_seconds=0, consumers=3).run()

    for thread in threads:
        thread.join(PATIENCE_SECONDS)
    assert not any(thread.is_alive() for thread in threads)


def interrupt() -> None:
    """Press Ctrl-C."""
    main = threading.main_thread().ident
    assert main
    signal.pthread_kill(main, signal.SIGINT)


def test_a_stopped_reader_finishes_one_and_returns_the_rest(played: PlayedMailbox, work: StoppableHandler) -> None:
    played.put(b"1", b"2", b"3")
    with running_reader(played, work) as reader:
        assert work.started.wait(PATIENCE_SECONDS)
        reader.stop()
        played.wait_for(lambda: played.said("nack"))
        work.may_end.set()
    assert work.begun == played.acknowledged == [1]
    assert played.said("nack") == [{"receipts": ["receipt-2", "receipt-3"], "not_attempted": True}]


def test_messages_fetched_after_the_stop_are_returned(played: PlayedMailbox, work: StoppableHandler) -> None:
    with running_reader(played, work) as reader:
        played.wait_for(lambda: played.said("next"))
        reader.stop()
        played.put(b"1")
    assert work.begun == []
    assert played.said("nack") == [{"receipts": ["receipt-1"], "not_attempted": True}]


def test_a_handler_that_ends_its_thread_ends_the_reader_and_its_message_is_returned(
    played: PlayedMailbox, mailbox: Mailbox, caplog: pytest.LogCaptureFixture
) -> None:
    def leave(_: Message) -> None:
        raise SystemExit("enough")

    played.put(b"1", b"2")
    with pytest.raises(SystemExit, match="enough"):
        MailboxReader(mailbox, leave, wait_seconds=0).run()

    assert played.acknowledged == []
    assert sorted(receipt for call in played.said("nack") for receipt in call["receipts"]) == ["receipt-1", "receipt-2"]
    assert "mailbox.reader_failed" in caplog.text


@pytest.fixture(params=[False, True], ids=["started", "starting"])
def interrupted_reader(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, played: PlayedMailbox
) -> PlayedMailbox:
    """The mailbox of a reader that Ctrl-C meets when it has started its thread, or is still about to note that."""
    real = threading.Thread.start

    def start(thread: threading.Thread) -> None:
        real(thread)
        if threading.current_thread() is threading.main_thread():
            threading.Event().wait(PATIENCE_SECONDS)

    if request.param:
        monkeypatch.setattr(threading.Thread, "start", start)
    return played


@pytest.mark.usefixtures("can_be_interrupted")
def test_ctrl_c_ends_the_reader_when_its_handler_has_ended(interrupted_reader: PlayedMailbox, mailbox: Mailbox) -> None:
    played, ended = interrupted_reader, list[int]()

    def work(message: Message) -> None:
        interrupt()
        played.wait_for(lambda: played.said("nack"))
        ended.append(message.message_id)

    played.put(b"1", b"2")
    with pytest.raises(KeyboardInterrupt):
        MailboxReader(mailbox, work, wait_seconds=0).run()

    assert ended == played.acknowledged == [1]


@pytest.mark.usefixtures("can_be_interrupted")
def test_a_join_after_ctrl_c_waits(played: PlayedMailbox, mailbox: Mailbox, work: StoppableHandler) -> None:
    ended: list[int] = []

    def let_it_end() -> None:
        ended.append(1)
        work.may_end.set()

    def join() -> None:
        threading.Thread(target=interrupt).start()
        reader.join()

    played.put(b"1")
    reader = MailboxReader(mailbox, work, wait_seconds=0)
    reader.start()
    assert work.started.wait(PATIENCE_SECONDS)

    with pytest.raises(KeyboardInterrupt):
        join()
    reader.stop()
    threading.Thread(target=let_it_end).start()
    reader.join()

    assert ended == played.acknowledged == [1]


def test_a_reader_that_has_ended_has_no_connection_left_and_reads_no_more(played: PlayedMailbox) -> None:
    opened: list[requests.Session] = []
    closed: list[requests.Session] = []

    class Session(requests.Session):
        def __init__(self) -> None:
            super().__init__()
            opened.append(self)

        def close(self) -> None:
            closed.append(self)
            super().close()

    played.put(b"1")
    with running_reader(played, lambda _: None, sessions=Session) as reader:
        played.wait_for(lambda: played.acknowledged)
    assert len(opened) == 2  # the worker's, and the keeper's
    assert {*map(id, opened)} == {*map(id, closed)}
    with pytest.raises(RuntimeError, match="reads once"):
        reader.start()
