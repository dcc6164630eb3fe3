"""The reader: when it acknowledges, extends and returns what it was given, and how it ends."""

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import pytest
import requests

from broker_client import Mailbox, MailboxReader, Message, Refused
from tests.played_mailbox import LOST, NAME, TOKEN, PlayedMailbox, Trouble, playing
from tests.receiver import PATIENCE, wait_until

SOON = {"Retry-After": "0"}
TIME_OUT = 4.0
"""Long enough that a busy machine lets nothing go, short enough to wait for what is extended."""


@pytest.fixture
def played() -> Iterator[PlayedMailbox]:
    with playing() as mailbox:
        yield mailbox


@dataclass(slots=True)
class Work:
    """A handler that can be stopped in the middle."""

    begun: list[int] = field(default_factory=list)
    started: threading.Event = field(default_factory=threading.Event)
    may_end: threading.Event = field(default_factory=threading.Event)

    def __call__(self, message: Message) -> None:
        self.begun.append(message.message_id)
        self.started.set()
        assert self.may_end.wait(PATIENCE)


def interrupt() -> None:
    """Press Ctrl-C."""
    main = threading.main_thread().ident
    assert main
    signal.pthread_kill(main, signal.SIGINT)


@contextlib.contextmanager
def reading(
    played: PlayedMailbox, handler: Callable[[Message], object], *, most: int = 10, consumers: int = 1
) -> Iterator[MailboxReader]:
    """Read until the block ends; then stop, and wait for the end."""
    reader = MailboxReader(Mailbox(played.url, NAME, TOKEN), handler, most=most, wait=PATIENCE, consumers=consumers)
    reader.start()
    try:
        yield reader
    finally:
        reader.stop()
        played.end()
        reader.join()


def test_a_message_is_acknowledged_after_its_handler_has_returned(played: PlayedMailbox) -> None:
    work = Work()
    played.put(b"1")

    with reading(played, work):
        assert work.started.wait(PATIENCE)
        assert played.said("ack") == []
        work.may_end.set()
        played.wait_for(lambda: played.acknowledged == [1])


def test_messages_are_worked_off_in_order_and_acknowledged_together(played: PlayedMailbox) -> None:
    begun: list[int] = []
    played.put(*[b"{}"] * 25)

    with reading(played, lambda message: begun.append(message.message_id), most=10):
        played.wait_for(lambda: len(played.acknowledged) == 25)

    assert begun == played.acknowledged == [*range(1, 26)]
    assert len(played.said("next")) <= 4


def test_what_comes_while_the_reader_waits_is_worked_on(played: PlayedMailbox) -> None:
    with reading(played, lambda _: None):
        played.wait_for(lambda: played.said("next"))
        played.put(b"1")
        played.wait_for(lambda: played.acknowledged == [1])


def test_what_is_in_hand_is_extended_while_the_handler_works(played: PlayedMailbox) -> None:
    work = Work()
    played.seconds = TIME_OUT
    played.put(b"1", b"2")

    with reading(played, work):
        played.wait_for(lambda: len(played.said("extend")) >= 2)
        work.may_end.set()
        played.wait_for(lambda: played.acknowledged == [1, 2])

    assert played.said("extend")[0] == {"receipts": ["receipt-1", "receipt-2"]}


@pytest.mark.parametrize("ahead", [timedelta(hours=-1), timedelta(hours=1)])
def test_what_is_in_hand_is_worked_on_and_extended_whatever_the_clocks_say(
    played: PlayedMailbox, ahead: timedelta
) -> None:
    work = Work()
    played.seconds, played.clock_is_ahead = TIME_OUT, ahead
    played.put(b"1")

    with reading(played, work):
        played.wait_for(lambda: played.said("extend"))
        work.may_end.set()
        played.wait_for(lambda: played.acknowledged == [1])

    assert work.begun == [1]


def test_a_message_whose_handler_raises_is_returned_and_comes_again(
    played: PlayedMailbox, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[int] = []

    def fail_once(message: Message) -> None:
        seen.append(message.message_id)
        if seen == [1]:
            raise ValueError("the first time")

    played.put(b"1")
    with reading(played, fail_once):
        played.wait_for(lambda: played.acknowledged == [1])

    assert seen == [1, 1]
    assert played.said("nack") == [{"receipts": ["receipt-1"]}]
    assert "mailbox.not_done id=dlv_1" in caplog.text


def test_a_reader_that_stops_finishes_what_it_works_on_and_returns_the_rest(played: PlayedMailbox) -> None:
    work = Work()
    played.put(b"1", b"2", b"3")

    with reading(played, work) as reader:
        assert work.started.wait(PATIENCE)
        reader.stop()
        played.wait_for(lambda: played.said("nack"))
        work.may_end.set()

    assert work.begun == played.acknowledged == [1]
    assert played.said("nack") == [{"receipts": ["receipt-2", "receipt-3"], "untried": True}]


def test_what_comes_to_a_reader_that_has_been_stopped_is_returned(played: PlayedMailbox) -> None:
    work = Work()

    with reading(played, work) as reader:
        played.wait_for(lambda: played.said("next"))
        reader.stop()
        played.put(b"1")

    assert work.begun == []
    assert played.said("nack") == [{"receipts": ["receipt-1"], "untried": True}]


@pytest.mark.parametrize("trouble", [LOST, Trouble(503, {"title": "Later"}, SOON), Trouble(429, {}, SOON)])
@pytest.mark.parametrize("what", ["ack", "nack", "extend", "next"])
def test_a_call_that_fails_is_made_again(played: PlayedMailbox, what: str, trouble: Trouble | None) -> None:
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
    with reading(played, work, most=1):
        played.wait_for(lambda: len(played.said(what)) >= 2)
        if what != "next" or trouble is not LOST:
            played.wait_for(lambda: sorted(played.acknowledged) == [1, 2])


def test_a_broker_without_a_place_to_wait_is_asked_again_when_it_says(played: PlayedMailbox) -> None:
    played.troubles["next"].append(Trouble(204, headers=SOON))
    played.put(b"1")

    with reading(played, lambda _: None):
        played.wait_for(lambda: played.acknowledged == [1])


def test_what_has_gone_to_somebody_else_is_not_begun(played: PlayedMailbox, caplog: pytest.LogCaptureFixture) -> None:
    work = Work()
    played.seconds = TIME_OUT
    played.put(b"1", b"2")

    with reading(played, work):
        assert work.started.wait(PATIENCE)
        played.take_back("receipt-2")
        played.wait_for(lambda: {"receipts": ["receipt-1"]} in played.said("extend"))
        work.may_end.set()
        played.wait_for(lambda: played.acknowledged)

    assert work.begun == played.acknowledged == [1]
    assert "mailbox.not_ours id=dlv_2 word=extend code=stale_receipt" in caplog.text


def test_what_timed_out_while_it_was_worked_on_is_acknowledged_all_the_same(
    played: PlayedMailbox, caplog: pytest.LogCaptureFixture
) -> None:
    work = Work()
    timed_out = {"receipt": "receipt-1", "status": 409, "code": "timed_out"}
    played.seconds = TIME_OUT
    played.troubles["extend"].append(Trouble(200, {"results": [timed_out]}))
    played.put(b"1")

    with reading(played, work):
        played.wait_for(lambda: played.said("extend"))
        wait_until(lambda: "mailbox.not_ours id=dlv_1 word=extend code=timed_out" in caplog.text)
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
    reader = MailboxReader(Mailbox(played.url, NAME, TOKEN, sessions=Session), lambda _: None, wait=0)
    reader.start()
    played.wait_for(lambda: sorted(played.acknowledged) == [1, 2])
    reader.stop()
    reader.join()

    assert patience
    assert max(patience) <= played.seconds / 3


@pytest.mark.parametrize("what", ["next", "ack"])
def test_a_reader_that_is_refused_for_good_ends_and_says_why(played: PlayedMailbox, what: str) -> None:
    played.troubles[what].append(Trouble(403, {"title": "Forbidden"}))
    played.put(b"1")
    reader = MailboxReader(Mailbox(played.url, NAME, TOKEN), lambda _: None, wait=0, consumers=3)

    with pytest.raises(Refused, match="403: Forbidden"):
        reader.run()


def test_a_handler_that_ends_its_thread_ends_the_reader_and_its_message_is_returned(
    played: PlayedMailbox, caplog: pytest.LogCaptureFixture
) -> None:
    def leave(_: Message) -> None:
        raise SystemExit("enough")

    played.put(b"1", b"2")
    with pytest.raises(SystemExit, match="enough"):
        MailboxReader(Mailbox(played.url, NAME, TOKEN), leave, wait=0).run()

    assert played.acknowledged == []
    assert sorted(receipt for call in played.said("nack") for receipt in call["receipts"]) == ["receipt-1", "receipt-2"]
    assert "mailbox.ended" in caplog.text


def test_ctrl_c_ends_the_reader_when_its_handler_has_ended(played: PlayedMailbox) -> None:
    ended: list[int] = []

    def work(message: Message) -> None:
        interrupt()
        played.wait_for(lambda: played.said("nack"))
        ended.append(message.message_id)

    played.put(b"1", b"2")
    with pytest.raises(KeyboardInterrupt):
        MailboxReader(Mailbox(played.url, NAME, TOKEN), work, wait=0).run()

    assert ended == played.acknowledged == [1]


def test_whoever_joins_after_ctrl_c_waits_for_the_handler(played: PlayedMailbox) -> None:
    ended: list[int] = []
    work = Work()

    def let_it_end() -> None:
        ended.append(1)
        work.may_end.set()

    def join() -> None:
        threading.Thread(target=interrupt).start()
        reader.join()

    played.put(b"1")
    reader = MailboxReader(Mailbox(played.url, NAME, TOKEN), work, wait=0)
    reader.start()
    assert work.started.wait(PATIENCE)

    with pytest.raises(KeyboardInterrupt):
        join()
    reader.stop()
    threading.Thread(target=let_it_end).start()
    reader.join()

    assert ended == played.acknowledged == [1]


def test_a_consumer_that_cannot_be_started_ends_the_others(
    played: PlayedMailbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[threading.Thread] = []
    start = threading.Thread.start

    def start_two(thread: threading.Thread) -> None:
        if len(threads) == 2:
            raise RuntimeError("can't start new thread")
        threads.append(thread)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_two)
    played.troubles["next"].extend([Trouble(204)])
    with pytest.raises(RuntimeError, match="new thread"):
        MailboxReader(Mailbox(played.url, NAME, TOKEN), lambda _: None, wait=0, consumers=3).run()

    for thread in threads:
        thread.join(PATIENCE)
    assert not any(thread.is_alive() for thread in threads)


def test_a_handler_may_ask_whether_its_message_is_still_its_own(played: PlayedMailbox) -> None:
    held: list[bool] = []

    def work(message: Message) -> None:
        held.append(reader.holds(message))
        played.take_back(message.receipt)
        wait_until(lambda: not reader.holds(message))
        held.append(reader.holds(message))

    played.seconds = TIME_OUT
    played.put(b"1")
    reader = MailboxReader(Mailbox(played.url, NAME, TOKEN), work, wait=0)
    reader.start()
    wait_until(lambda: len(held) == 2)
    reader.stop()
    reader.join()

    assert held == [True, False]


def test_several_consumers_work_side_by_side(played: PlayedMailbox) -> None:
    together = threading.Barrier(4, timeout=PATIENCE)
    played.put(*[b"{}"] * 4)

    with reading(played, lambda _: together.wait(), most=1, consumers=4):
        played.wait_for(lambda: sorted(played.acknowledged) == [1, 2, 3, 4])
