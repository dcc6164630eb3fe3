"""What becomes of the messages of a mailbox, as its subscriber is told (behaviour 9): no database, and no clock."""

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Final, Literal

from delivery.mailbox.mailbox import Receipt
from delivery.mailbox.results import ReceiptCode
from delivery.statuses import DeliveryStatus

CANCELLED, DELIVERED, EXPIRED = DeliveryStatus.CANCELLED, DeliveryStatus.DELIVERED, DeliveryStatus.EXPIRED
FAILED, IN_FLIGHT, PENDING = DeliveryStatus.FAILED, DeliveryStatus.IN_FLIGHT, DeliveryStatus.PENDING
HOURS: Final = 6
"""How long a message is in flight unless that is prolonged."""
DAYS: Final = 4
"""How long it waits to be read, while it can be."""
ALL: Final = ("inactive as a whole", 0)
STOPS: Final = [("inactive", 0), ("inactive", 1), ("paused", 0), ("paused", 1), ALL]

Saying = Literal["ack", "nack", "not_attempted", "extend"]
BACK = ("nack", "not_attempted")
"""The two ways of giving back: only the first is a try that failed."""


@dataclass(slots=True)
class Known:
    """What is known of one delivery."""

    at: int
    """Which of the subscriptions it belongs to."""
    is_mortal: bool
    """Whether it has a time to live."""
    status: DeliveryStatus = PENDING
    fetches: int = 0
    hours: int | None = None
    """How much longer it is in flight, not above 0 once it has timed out; None: no client has it."""
    days: int = 0
    is_aside: bool = False
    """Whether it was pushed in vain, and its pause is not over."""
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
    def is_under_way(self) -> bool:
        """Whether somebody has it: a client, in time, or a worker."""
        return self.status == IN_FLIGHT and not self.is_late

    @property
    def rests(self) -> bool:
        """Whether nobody has it."""
        return self.is_unfinished and not self.is_under_way

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
    days: list[int] = field(default_factory=lambda: [0, 0])
    """Since each subscription was stopped, or switched, or went on."""
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
        """Return what a fetch of so many has to get: the oldest that nobody has, one at a time if it is ordered."""
        if self.is_ordered and any(one.is_under_way and self._holds_up(one) for one in self.known.values()):
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
        is_there = one.status == PENDING and not (one.is_aside or one.is_dead)
        return is_there and one.at not in self.pulled and self.runs(one.at)

    def ends_in_vain(self, one: Known, *, was_tried: bool = True) -> bool:
        return one.is_asked_to_end or (was_tried and self.most is not None and one.fetches > self.most)

    # --- what happens ----------------------------------------------------------------------------------

    def hand_out(self, delivery_id: int) -> None:
        one = self.known[delivery_id]
        one.is_uncertain |= one.is_late
        one.status, one.fetches, one.hours = IN_FLIGHT, one.fetches + 1, HOURS
        one.is_aside = False

    def switch(self, at: int) -> None:
        self.pulled ^= {at}
        self.days[at] = 0

    def stop_or_go_on(self, stop: tuple[str, int]) -> None:
        self.stopped ^= {stop}
        self.days = [0 if stop in {ALL, (stop[0], at)} else days for at, days in enumerate(self.days)]

    def pass_hours(self, hours: int) -> None:
        """Let more time pass than pauses and lives last."""
        for one in self.known.values():
            one.hours = None if one.hours is None else one.hours - hours
            one.is_aside, one.is_dead = False, one.is_mortal

    def pass_days(self, days: int) -> None:
        self.days = [before + days for before in self.days]
        for one in self.known.values():
            one.days += days

    def attend(self) -> None:
        """End what the clock ends, and take back what is pushed by now."""
        for one in [one for one in self.known.values() if one.rests]:
            is_pulled = one.at in self.pulled
            if one.is_dead or (is_pulled and self.runs(one.at) and min(one.days, self.days[one.at]) >= DAYS):
                one.end(EXPIRED)
            elif one.is_late and self.ends_in_vain(one):
                self._end_in_vain(one)
            elif one.is_late and not is_pulled:
                one.come_back(is_uncertain=True)

    def cancel(self, ats: Collection[int]) -> tuple[int, int]:
        """Return how many end at once, and how many are newly asked to end."""
        theirs = [one for one in self.known.values() if one.at in ats]
        resting = [one for one in theirs if one.rests]
        asked = [one for one in theirs if one.is_under_way and not one.is_asked_to_end]
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
        if one.fetches != receipt.fetch:
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
        if one is None or one.hours is None or one.fetches != receipt.fetch:
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
    """Return the same again to whoever has ended it so."""
    if one.has_ended_out and one.status == DELIVERED:
        return ReceiptCode.ACKNOWLEDGED, what == "ack"
    if one.has_ended_out and what in BACK and one.status in {FAILED, CANCELLED}:
        return ReceiptCode(one.status.lower()), True
    return ReceiptCode.ENDED, False
