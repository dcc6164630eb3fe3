"""The reader: when it acknowledges, extends and returns what it was given."""

import threading
from datetime import timedelta

import pytest

from broker_client import Message
from tests.played_mailbox import PlayedMailbox
from tests.reading_mailbox import TIME_OUT, Work, reading
from tests.receiver import PATIENCE


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


def test_several_consumers_work_side_by_side(played: PlayedMailbox) -> None:
    together = threading.Barrier(4, timeout=PATIENCE)
    played.put(*[b"{}"] * 4)

    with reading(played, lambda _: together.wait(), most=1, consumers=4):
        played.wait_for(lambda: sorted(played.acknowledged) == [1, 2, 3, 4])
