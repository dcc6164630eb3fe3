"""The reader where the broker fails, is not to be reached, or gives to somebody else what it has in hand."""

import threading
from typing import Any

import pytest
import requests

from broker_client import Mailbox, MailboxReader, Message, Refused
from tests.played_answers import LOST, Trouble
from tests.played_mailbox import PlayedMailbox
from tests.playing_mailbox import NAME, TOKEN
from tests.reading_mailbox import TIME_OUT, Work, reading
from tests.receiver import PATIENCE, wait_until

SOON = {"Retry-After": "0"}


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


@pytest.mark.parametrize("what", ["next", "ack"])
def test_a_reader_that_is_refused_for_good_ends_and_says_why(played: PlayedMailbox, what: str) -> None:
    played.troubles[what].append(Trouble(403, {"title": "Forbidden"}))
    played.put(b"1")
    reader = MailboxReader(Mailbox(played.url, NAME, TOKEN), lambda _: None, wait=0, consumers=3)

    with pytest.raises(Refused, match="403: Forbidden"):
        reader.run()


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
