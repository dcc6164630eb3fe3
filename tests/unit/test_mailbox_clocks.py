"""How long the mailbox's client holds what it has fetched, however the clocks are set and however slow the line is."""

from datetime import timedelta

import pytest

from broker_client import Mailbox
from broker_client.clock import now
from tests.played_mailbox import PlayedMailbox


@pytest.mark.parametrize("ahead", [timedelta(days=-1), timedelta(0), timedelta(days=1)])
def test_a_message_is_held_from_before_it_was_asked_for_whatever_the_clocks_say(
    played: PlayedMailbox, mailbox: Mailbox, ahead: timedelta
) -> None:
    played.clock_is_ahead = ahead
    played.put(b"1")
    before = now()

    (message,) = mailbox.next().messages
    (result,) = mailbox.extend([message.receipt])

    assert before + 30 <= message.held_until <= played.calls[0].at + 30
    assert message.held_until <= result.held_until <= played.calls[1].at + 30
    assert 0 < message.seconds_left <= 30


def test_what_a_call_has_waited_for_is_held_from_then_on(played: PlayedMailbox, mailbox: Mailbox) -> None:
    played.waited = 19.5
    played.put(b"1")
    before = now()

    (message,) = mailbox.next(wait=20).messages

    assert before + 49.5 <= message.held_until <= played.calls[0].at + 49.5
