"""How the reader ends: stopped, interrupted, or by its handler."""

import signal
import threading

import pytest
import requests

from broker_client import Mailbox, MailboxReader, Message
from tests.support.mailbox_server import NAME, TOKEN, PlayedMailbox, Work, reading
from tests.support.receiver import PATIENCE

pytestmark = pytest.mark.usefixtures("can_be_interrupted")


def interrupt() -> None:
    """Press Ctrl-C."""
    main = threading.main_thread().ident
    assert main
    signal.pthread_kill(main, signal.SIGINT)


def test_a_reader_that_stops_finishes_what_it_works_on_and_returns_the_rest(played: PlayedMailbox) -> None:
    work = Work()
    played.put(b"1", b"2", b"3")

    with reading(played, work) as reader:
        assert work.started.wait(PATIENCE)
        reader.stop()
        played.wait_for(lambda: played.said("nack"))
        work.may_end.set()

    assert work.begun == played.acknowledged == [1]
    assert played.said("nack") == [{"receipts": ["receipt-2", "receipt-3"], "not_attempted": True}]


def test_what_comes_to_a_reader_that_has_been_stopped_is_returned(played: PlayedMailbox) -> None:
    work = Work()

    with reading(played, work) as reader:
        played.wait_for(lambda: played.said("next"))
        reader.stop()
        played.put(b"1")

    assert work.begun == []
    assert played.said("nack") == [{"receipts": ["receipt-1"], "not_attempted": True}]


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
    reader = MailboxReader(Mailbox(played.url, NAME, TOKEN, sessions=Session), lambda _: None, wait=0)
    reader.start()
    played.wait_for(lambda: played.acknowledged)
    reader.stop()
    reader.join()

    assert len(opened) == 2  # the worker's, and the keeper's
    assert {*map(id, opened)} == {*map(id, closed)}
    with pytest.raises(RuntimeError, match="reads once"):
        reader.start()
