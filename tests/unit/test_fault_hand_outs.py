"""What is said of a mailbox's clients by what they wrote down."""

from dataclasses import replace

import pytest

from tests.faults.exchanges import Exchange
from tests.faults.figures import Figures
from tests.faults.hand_outs import Asked, Handed, Record, Said, in_hand
from tests.faults.mailbox_figures import figures_of_mailbox

TIME_OUT = 3.0


def handed(number: int = 1, at: float = 10.0, redeliveries: int = 0, *, until: float = 0.0) -> Handed:
    receipt = f"{number} at {at}"
    flagged, ends = redeliveries > 0, until or at + TIME_OUT
    return Handed(receipt, "client", number, f"dlv_{number}", redeliveries, flagged, False, at, ends)


def said(of: Handed, word: str = "ack", *, at: float = 11.0, status: int = 200, until: float = 0.0) -> Said:
    return Said(of.receipt, word, status, "said", at, at + 0.01, until)


def asked(of: Handed, word: str, *, at: float = 11.0) -> Asked:
    return Asked(of.receipt, word, at)


def broken(records: list[Record], *, winners: int = 1, sent: list[Exchange] | None = None) -> dict[str, int]:
    """Return what is wrong with the hand-outs of one event."""
    return figures_of_mailbox([1], [1], records, sent=sent or [], winners={1: winners}).broken


FIRST = handed()
AGAIN = handed(at=13.1, redeliveries=1)
DONE = said(AGAIN, at=14.0)
EXTENDED = said(FIRST, "extend", at=12.0, until=15.0)
RETURNED = said(FIRST, "nack", at=11.0)
SOON = handed(at=11.1, redeliveries=1)


@pytest.mark.parametrize(
    ("records", "wrong"),
    [
        ([FIRST, said(FIRST)], {}),
        ([FIRST, said(FIRST), said(FIRST)], {}),
        ([FIRST, AGAIN, DONE], {}),
        ([FIRST, asked(FIRST, "nack"), RETURNED, SOON, said(SOON, at=12.0)], {}),
        ([FIRST, asked(FIRST, "nack"), SOON, said(FIRST, "nack", at=11.5, status=409), said(SOON, at=12.0)], {}),
        ([FIRST, asked(FIRST, "nack", at=11.5), SOON, said(SOON, at=12.0)], {"overlapping": 1}),
        ([FIRST, AGAIN, said(FIRST, at=13.5, status=409), DONE], {}),
        ([FIRST], {"lost": 1}),
        ([FIRST, said(FIRST, status=409)], {"lost": 1}),
        ([FIRST, said(FIRST, "nack")], {"lost": 1}),
        ([FIRST, SOON, said(SOON, at=12.0)], {"overlapping": 1}),
        ([FIRST, EXTENDED, AGAIN, DONE], {"overlapping": 1}),
        ([FIRST, said(FIRST), AGAIN, said(AGAIN, at=14.0, status=409)], {"unexpected": 1}),
        ([FIRST, replace(AGAIN, flagged=False), DONE], {"unflagged": 1}),
        ([FIRST, replace(AGAIN, webhook_id="dlv_2"), DONE], {"unflagged": 1}),
        ([FIRST, replace(AGAIN, redeliveries=0), DONE], {"misnumbered": 1}),
        ([replace(FIRST, altered=True), said(FIRST)], {"altered": 1}),
        ([FIRST, said(FIRST), handed(2)], {"unexpected": 1}),
    ],
)
def test_a_message_has_one_holder_at_a_time_and_one_end(records: list[Record], wrong: dict[str, int]) -> None:
    assert broken(records) == wrong


@pytest.mark.parametrize("winners", [0, 2])
def test_the_books_have_to_say_that_it_was_delivered_once(winners: int) -> None:
    assert broken([FIRST, said(FIRST)], winners=winners) == {"misrecorded": 1}


def test_an_acknowledgement_of_a_client_that_was_killed_counts_if_the_books_say_so() -> None:
    killed: list[Record] = [FIRST, asked(FIRST, "ack")]
    assert broken(killed) == {}
    assert broken(killed, winners=0) == {"lost": 1, "misrecorded": 1}
    assert broken([*killed, said(FIRST, status=409)]) == {"lost": 1}
    assert broken([FIRST, asked(FIRST, "nack")]) == {"lost": 1}


def test_what_is_sent_meanwhile_must_not_be_in_anybodys_hands() -> None:
    request = Exchange(number=1, webhook_id="dlv_1", sequence=1, flagged=True, altered=False, at=12.0)
    taken = replace(request, status=200, answered_at=12.1)
    assert broken([FIRST], sent=[taken]) == {"overlapping": 1}
    assert broken([FIRST], sent=[replace(taken, at=13.5, answered_at=13.6)]) == {}


def test_what_has_expired_or_was_purged_was_not_to_be_delivered() -> None:
    assert figures_of_mailbox([1], [1], [], winners={1: 0}, dropped=[1]) == Figures()
    seen = figures_of_mailbox([1], [1], [FIRST, said(FIRST)], winners={1: 1}, dropped=[1])
    assert seen.broken == {"unexpected": 1}


def test_copies_are_counted_and_delivered_only_once() -> None:
    seen = figures_of_mailbox([1], [1], [FIRST, AGAIN, DONE], winners={1: 1})
    assert (seen.acknowledged, seen.delivered, seen.duplicated) == (1, 1, 1)


def test_what_nobody_has_said_anything_of_is_in_hand() -> None:
    assert in_hand([FIRST, AGAIN]) == [FIRST, AGAIN]
    assert in_hand([FIRST, asked(FIRST, "ack"), AGAIN]) == [AGAIN]
