"""What a mailbox must answer after any history, without a database, and clients that compare."""

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Final, Literal

from hypothesis import note

from delivery.mailbox.acknowledge import UNKNOWN, ReceiptCode, ReceiptResult, acknowledge, extend, nack
from delivery.mailbox.fetch_messages import fetch
from delivery.mailbox.receipts import FetchedMessage, Receipt
from delivery.models import Delivery
from delivery.statuses import DeliveryStatus
from subscriptions.models import DeliveryMode
from subscriptions.retry_policies import Action
from tests.support.factories import retry_policy, subscriber, subscription
from tests.support.mailboxes import mailbox_of
from tests.support.random_data import RandomHistory, one_of, some_of

CANCELLED, DELIVERED, EXPIRED = DeliveryStatus.CANCELLED, DeliveryStatus.DELIVERED, DeliveryStatus.EXPIRED
FAILED, IN_FLIGHT, PENDING = DeliveryStatus.FAILED, DeliveryStatus.IN_FLIGHT, DeliveryStatus.PENDING
HOURS: Final = 6
"""How long a message is in flight unless that is prolonged."""
DAYS: Final = 4
"""How long it waits to be read, from its publishing."""
ALL: Final = ("inactive as a whole", 0)
STOPS: Final = [("inactive", 0), ("inactive", 1), ("paused", 0), ("paused", 1), ALL]

Saying = Literal["ack", "nack", "not_attempted", "extend"]
BACK = ("nack", "not_attempted")
"""The two ways of giving back: only the first is a try that failed."""

AN_HOUR: Final = 3600


may = RandomHistory()
which, yes_or_no = one_of(0, 1), one_of(False, True)
counts, perhaps = one_of(1, 2, 3, 4), one_of(0, 1, 2, 3)


@dataclass(slots=True)
class Known:
    """What is known of one delivery."""

    at: int
    """Which of the subscriptions it belongs to."""
    is_mortal: bool
    """Whether it has a time to live."""
    status: DeliveryStatus = PENDING
    fetches: int = 0
    fetch_id: int = 0
    hours: int | None = None
    """How much longer it is in flight, not above 0 once it has timed out; None: no client has it."""
    days: int = 0
    is_deferred: bool = False
    """Whether a push failed, and its pause is not over."""
    is_dead: bool = False
    """Whether its time to live is over."""
    is_uncertain: bool = False
    """Whether its subscriber may have it already."""
    is_asked_to_end: bool = False
    has_ended_out: bool = False
    """Whether it ended by its newest receipt, or by the time-out of that."""

    @property
    def is_unfinished(self) -> bool:
        return self.status in {PENDING, IN_FLIGHT}

    @property
    def is_out(self) -> bool:
        """Whether its newest receipt counts."""
        return self.hours is not None

    @property
    def is_late(self) -> bool:
        return self.hours is not None and self.hours <= 0

    @property
    def is_in_flight(self) -> bool:
        """Whether somebody has it: a client, in time, or a worker."""
        return self.status == IN_FLIGHT and not self.is_late

    @property
    def rests(self) -> bool:
        """Whether nobody has it."""
        return self.is_unfinished and not self.is_in_flight

    def end(self, status: DeliveryStatus) -> None:
        self.status, self.has_ended_out, self.hours = status, self.is_out, None

    def come_back(self, *, is_uncertain: bool = False) -> None:
        self.status, self.hours = PENDING, None
        self.is_uncertain |= is_uncertain


@dataclass(slots=True)
class ExpectedMailbox:
    """All that was published to it, and what it is told to do."""

    pulled: set[int] = field(default_factory=lambda: {0, 1})
    """The subscriptions that are fetched; the others are pushed."""
    stopped: set[tuple[str, int]] = field(default_factory=set)
    """Which of the subscriptions are stopped, and how; or ALL of them."""
    is_ordered: bool = False
    most: int | None = None
    """How often a message may be handed out again."""
    known: dict[int, Known] = field(default_factory=dict)

    def qualifies(self, at: int) -> bool:
        """Tell whether it gets what is published."""
        return not self.stopped & {("inactive", at), ALL}

    def runs(self, at: int) -> bool:
        return self.qualifies(at) and ("paused", at) not in self.stopped

    @property
    def unfinished(self) -> list[Known]:
        return [one for one in self.known.values() if one.is_unfinished]

    def available(self, most: int) -> list[int]:
        """Return what a fetch of up to `most` has to get: the oldest that nobody has, one if it is ordered."""
        if self.is_ordered and any(one.is_in_flight and self._holds_up(one) for one in self.known.values()):
            return []
        there = [delivery_id for delivery_id, one in sorted(self.known.items()) if self._is_available(one)]
        return there[: min(most, 1) if self.is_ordered else most]

    def _holds_up(self, one: Known) -> bool:
        """Tell whether an ordered mailbox waits for it: not for what has been pushed since it is a line's again."""
        return one.is_out or one.at in self.pulled

    def _is_available(self, one: Known) -> bool:
        is_there = one.rests and not (one.is_dead or (one.is_late and self.ends_in_vain(one)))
        return is_there and one.at in self.pulled and self.runs(one.at)

    def is_pushed_next(self, one: Known) -> bool:
        is_there = one.status == PENDING and not (one.is_deferred or one.is_dead)
        return is_there and one.at not in self.pulled and self.runs(one.at)

    def ends_in_vain(self, one: Known, *, was_tried: bool = True) -> bool:
        return one.is_asked_to_end or (was_tried and self.most is not None and one.fetches > self.most)

    # --- what happens ----------------------------------------------------------------------------------

    def hand_out(self, receipt: Receipt) -> None:
        one = self.known[receipt.delivery_id]
        one.is_uncertain |= one.is_late
        one.status, one.fetches, one.hours = IN_FLIGHT, one.fetches + 1, HOURS
        one.fetch_id, one.is_deferred = receipt.fetch_id, False

    def switch(self, at: int) -> None:
        self.pulled ^= {at}

    def stop_or_go_on(self, stop: tuple[str, int]) -> None:
        self.stopped ^= {stop}

    def pass_hours(self, hours: int) -> None:
        """Let more time pass than pauses and lives last."""
        for one in self.known.values():
            one.hours = None if one.hours is None else one.hours - hours
            one.is_deferred, one.is_dead = False, one.is_mortal

    def pass_days(self, days: int) -> None:
        for one in self.known.values():
            one.days += days

    def attend(self) -> None:
        """End what the clock ends, and take back what is pushed by now."""
        for one in [one for one in self.known.values() if one.rests]:
            is_pulled = one.at in self.pulled
            if one.is_dead or (is_pulled and one.days >= DAYS):
                one.end(EXPIRED)
            elif one.is_late and self.ends_in_vain(one):
                self._end_in_vain(one)
            elif one.is_late and not is_pulled:
                one.come_back(is_uncertain=True)

    def cancel(self, ats: Collection[int]) -> tuple[int, int]:
        """Return how many end at once, and how many are newly asked to end."""
        theirs = [one for one in self.known.values() if one.at in ats]
        resting = [one for one in theirs if one.rests]
        asked = [one for one in theirs if one.is_in_flight and not one.is_asked_to_end]
        for one in resting:
            one.end(CANCELLED)
        for one in asked:
            one.is_asked_to_end = True
        return len(resting), len(asked)

    def _end_in_vain(self, one: Known) -> None:
        one.end(CANCELLED if one.is_asked_to_end else FAILED)

    # --- what is said of receipts ----------------------------------------------------------------------

    def answer(self, what: Saying, receipt: Receipt) -> tuple[ReceiptCode, bool]:
        """Return what a receipt is answered, and whether that is 200; nothing happens yet."""
        one = self.known.get(receipt.delivery_id)
        if one is None:
            return ReceiptCode.UNKNOWN, False
        if one.fetch_id != receipt.fetch_id:
            return (ReceiptCode.STALE if one.is_unfinished else ReceiptCode.ENDED), False
        if one.is_out:
            return self._answer_newest(what, one)
        if one.is_unfinished:
            return (ReceiptCode.STALE, False) if one.status == IN_FLIGHT else (ReceiptCode.RETURNED, what in BACK)
        return _answer_ended(what, one)

    def _answer_newest(self, what: Saying, one: Known) -> tuple[ReceiptCode, bool]:
        if what == "ack":
            return ReceiptCode.ACKNOWLEDGED, True
        if what == "extend":
            is_lost = self.is_ordered and one.is_late
            return (ReceiptCode.TIMED_OUT, False) if is_lost else (ReceiptCode.EXTENDED, True)
        if self.ends_in_vain(one, was_tried=what == "nack"):
            return (ReceiptCode.CANCELLED if one.is_asked_to_end else ReceiptCode.FAILED), True
        return ReceiptCode.RETURNED, True

    def note(self, what: Saying, receipt: Receipt, hours: int) -> None:
        """Let happen what is said of a receipt; only the newest says anything."""
        one = self.known.get(receipt.delivery_id)
        if one is None or one.hours is None or one.fetch_id != receipt.fetch_id:
            return
        if what == "ack":
            one.end(DELIVERED)
        elif what == "extend":
            one.hours = one.hours if self.is_ordered and one.is_late else max(one.hours, hours)
        elif self.ends_in_vain(one, was_tried=what == "nack"):
            self._end_in_vain(one)
        else:
            one.come_back()


def _answer_ended(what: Saying, one: Known) -> tuple[ReceiptCode, bool]:
    """Return the same again to the caller that has ended it so."""
    if one.has_ended_out and one.status == DELIVERED:
        return ReceiptCode.ACKNOWLEDGED, what == "ack"
    if one.has_ended_out and what in BACK and one.status in {FAILED, CANCELLED}:
        return ReceiptCode(one.status.lower()), True
    return ReceiptCode.ENDED, False


SAY: Final[dict[Saying, Callable[[int, Sequence[Receipt], int], dict[Receipt, ReceiptResult]]]] = {
    "ack": lambda whose, receipts, _: acknowledge(whose, receipts),
    "nack": lambda whose, receipts, _: nack(whose, receipts),
    "not_attempted": lambda whose, receipts, _: nack(whose, receipts, not_attempted=True),
    "extend": lambda whose, receipts, hours: extend(whose, receipts, seconds=hours * AN_HOUR),
}


sayings, hours_more = one_of(*SAY), one_of(2, 12)


class Clients:
    """Two subscriptions of one mailbox, all receipts that were ever given out, and what is expected of them."""

    def __init__(self) -> None:
        self.subscriber = subscriber(ack_seconds=HOURS * AN_HOUR)
        apart = retry_policy(
            on_server_error=Action.RETRY_LANE, initial_delay_seconds=AN_HOUR, max_delay_seconds=AN_HOUR
        )
        self.subscriptions = [
            subscription(self.subscriber, delivery_mode=DeliveryMode.PULL, retry_policy=policy)
            for policy in (None, apart)
        ]
        self.stranger = subscriber()
        self.expected = ExpectedMailbox()
        self.receipts: list[Receipt] = []

    # --- what can happen -------------------------------------------------------------------------------

    @may.happens(3, most=counts)
    def fetch(self, most: int) -> None:
        expected = self.expected.available(most)
        got = fetch(mailbox_of(self.subscriber), max_messages=most) if most else []
        self.handed_out(expected, got)

    @may.happens(3, most=counts, what=sayings, hours=hours_more)
    def fetch_and_say(self, most: int, what: Saying, hours: int) -> None:
        self.fetch(most)
        self.say(self.receipts[-1:], what, hours)

    @may.happens(3, ats=some_of(range(10)), what=sayings, hours=hours_more)
    def say_of_new_ones(self, ats: list[int], what: Saying, hours: int) -> None:
        if self.receipts:
            self.say([self.receipts[-1 - at % len(self.receipts)] for at in ats], what, hours)

    @may.happens(2, ats=some_of(range(100)), what=sayings, hours=hours_more)
    def say_of_any_and_of_none(self, ats: list[int], what: Saying, hours: int) -> None:
        if self.receipts:
            receipts = [self.receipts[at % len(self.receipts)] for at in ats]
            later = receipts[0]._replace(fetch_id=receipts[0].fetch_id + 1)
            self.say([*receipts, later, Receipt(1, 1)], what, hours)

    # --- what must hold --------------------------------------------------------------------------------

    def handed_out(self, expected: list[int], got: list[FetchedMessage]) -> None:
        assert [one.delivery_id for one in got] == expected, "9.1, 9.3, 9.7: the oldest that nobody holds"
        for one in got:
            self.expected.hand_out(one.receipt)
            its = self.expected.known[one.delivery_id]
            told = (one.redeliveries + 1, hours_until(one.until), one.is_uncertain)
            assert told == (its.fetches, its.hours, its.is_uncertain), "9.2"
            self.receipts.append(one.receipt)

    def say(self, receipts: list[Receipt], what: Saying, hours: int) -> None:
        assert {*SAY[what](self.stranger.pk, receipts, hours).values()} <= {UNKNOWN}
        expected = {one: self.expected.answer(what, one) for one in receipts}
        results = SAY[what](self.subscriber.pk, receipts, hours)
        note(f"{what} {results}")
        assert {one: (its.code, its.status == 200) for one, its in results.items()} == expected, "9.4"
        for receipt in expected:
            self.expected.note(what, receipt, hours)

    def is_as_expected(self) -> None:
        rows = Delivery.objects.values_list("id", "status", "fetches", "fetched_until", "uncertain")
        assert {row[0]: (*row[1:3], hours_until(row[3]), row[4]) for row in rows} == {
            delivery_id: (one.status, one.fetches, one.hours, one.is_uncertain)
            for delivery_id, one in self.expected.known.items()
        }


def hours_until(moment: datetime | None) -> int | None:
    """Return in how many hours it comes, the one under way included; an example lasts for less."""
    return None if moment is None else math.ceil((moment - datetime.now(UTC)) / timedelta(hours=1))
