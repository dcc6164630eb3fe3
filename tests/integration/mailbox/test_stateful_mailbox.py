"""In any history a message has one holder at a time, and its last receipt says how it ends (contract 9)."""

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Final, Literal

import pytest
from django.db.models import F
from hypothesis import HealthCheck, Phase, given, note, settings
from hypothesis import strategies as st

from delivery.dispatch.claim import end_leases_of
from delivery.mailbox.acknowledge import UNKNOWN, ReceiptCode, ReceiptResult, acknowledge, extend, nack
from delivery.mailbox.fetch_messages import fetch
from delivery.mailbox.receipts import Receipt
from delivery.mailbox.unread import expire_unread, purge, return_overdue
from delivery.maintenance.expiry import expire_overdue
from delivery.models import Delivery
from delivery.operations import cancel_deliveries_of
from delivery.statuses import DeliveryStatus
from subscriptions.models import DeliveryMode, Status, Subscriber
from subscriptions.retry_policies import Action
from tests.support.broker import lines_with_due_work, make_due, publish_bodies
from tests.support.database import execute
from tests.support.factories import retry_policy, subscriber, subscription
from tests.support.mailboxes import let_days_pass, mailbox_of, switch_delivery_mode
from tests.support.random_data import RandomHistory, one_of, some_of
from tests.support.stateful_deliveries import TABLES
from tests.support.stepped_worker import Request, SteppedWorker

LONG_AGO: Final = "2026-01-01T00:00:00Z"
STEPS: Final = 50
ROUNDS_TO_FINISH: Final = 20
MANY: Final = 8
"""Unfinished, beyond which no more are published."""
STATUSES: Final = ({"status": Status.INACTIVE}, {"status": Status.ACTIVE})
PAUSES: Final = ({"paused_since": LONG_AGO, "paused_by": "HAND"}, {"paused_since": None, "paused_by": ""})

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

    def pass_hours(self, hours: int) -> None:
        """Let more time pass than pauses and lives last."""
        for one in self.known.values():
            one.hours = None if one.hours is None else one.hours - hours
            one.is_deferred, one.is_dead = False, one.is_mortal

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


class StatefulMailbox:
    """Two subscriptions of one mailbox, its clients, a worker that pushes what is not pulled, and what is expected."""

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
        self.worker = SteppedWorker("worker", self.on_request)

    # --- what can happen -------------------------------------------------------------------------------

    @may.happens(3, most=counts)
    def fetch(self, most: int) -> None:
        expected = self.expected.available(most)
        got = fetch(mailbox_of(self.subscriber), max_messages=most) if most else []
        assert [one.delivery_id for one in got] == expected, "9.1, 9.3, 9.7: the oldest that nobody holds"
        for one in got:
            self.expected.hand_out(one.receipt)
            its = self.expected.known[one.delivery_id]
            told = (one.redeliveries + 1, hours_until(one.until), one.is_uncertain)
            assert told == (its.fetches, its.hours, its.is_uncertain), "9.2"
            self.receipts.append(one.receipt)

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

    def begin(self, were_pushed: bool) -> None:
        """Publish to both; perhaps to an endpoint that fails, so that some wait in either line."""
        if were_pushed:
            self.switch_all()
        for at in (0, 1):
            self.publish(at, 2, is_mortal=False)
        if were_pushed:
            self.push(500)
            self.answer_all(500)
            self.switch_all()

    @may.happens(3, at=which, count=counts, is_mortal=yes_or_no)
    def publish(self, at: int, count: int, is_mortal: bool) -> None:
        if len(self.expected.unfinished) > MANY:
            return
        one, known = self.subscriptions[at], self.expected.known
        ttl = {"ttl": float(AN_HOUR)} if is_mortal else {}
        publish_bodies(one.event_type, *[b"%d" % number for number in range(count)], **ttl)
        new = Delivery.objects.exclude(pk__in=known).values_list("pk", flat=True)
        assert len(new) == (count if self.expected.qualifies(at) else 0)
        known |= {delivery_id: Known(at, is_mortal) for delivery_id in new}

    @may.happens(2, is_attended=yes_or_no, most=perhaps)
    def pass_hours(self, is_attended: bool, most: int) -> None:
        """Let time pass: what is not prolonged times out, all pauses and lives are over; perhaps nobody sees to it."""
        for_hours = HOURS + 1
        Delivery.objects.open().update(fetched_until=F("fetched_until") - timedelta(hours=for_hours))
        make_due()
        Delivery.objects.open().filter(expires_at__isnull=False).update(expires_at=LONG_AGO)
        self.expected.pass_hours(for_hours)
        self.attend_and_fetch(is_attended, most)

    @may.happens(2, days=one_of(1, 2, 4), is_attended=yes_or_no, most=perhaps)
    def pass_days(self, days: int, is_attended: bool, most: int) -> None:
        """Let days pass, while clients go on extending the messages that they have."""
        let_days_pass(days=days)
        for one in self.expected.known.values():
            one.days += days
        self.attend_and_fetch(is_attended, most)

    @may.happens(2, at=which, most=perhaps)
    def switch(self, at: int, most: int) -> None:
        self.expected.pulled ^= {at}
        mode = DeliveryMode.PULL if at in self.expected.pulled else DeliveryMode.PUSH
        switch_delivery_mode(self.subscriptions[at], mode)
        self.fetch(most)

    @may.happens(2, stop=one_of(*STOPS), most=perhaps)
    def stop(self, stop: tuple[str, int], most: int) -> None:
        if stop not in self.expected.stopped:
            self.stop_or_go_on(stop)
        self.fetch(most)

    @may.happens(4, most=perhaps)
    def calm_down(self, most: int) -> None:
        """Let all go on, and be fetched; oftener than it is stopped, for else little happens."""
        for stop in [*self.expected.stopped]:
            self.stop_or_go_on(stop)
        for at in {0, 1} - self.expected.pulled:
            self.switch(at, most=0)
        self.fetch(most)

    @may.happens(at=which)
    def cancel(self, at: int) -> None:
        expected = self.expected.cancel({at})
        assert cancel_deliveries_of(self.subscriptions[at].pk, reason="cancelled") == (*expected, True)

    @may.happens()
    def purge(self) -> None:
        expected = self.expected.cancel(self.expected.pulled)
        assert purge(self.subscriber.pk, seconds=60) == (*expected, True)

    @may.happens(is_ordered=yes_or_no, most=one_of(None, None, 0, 1, 2))
    def set_up(self, is_ordered: bool, most: int | None) -> None:
        self.expected.is_ordered, self.expected.most = is_ordered, most
        Subscriber.objects.filter(pk=self.subscriber.pk).update(mailbox_ordered=is_ordered, max_redeliveries=most)

    @may.happens(3, result=one_of(None, 200, 500))
    def push(self, result: int | None) -> None:
        self.worker.take(lines_with_due_work())
        if result:
            self.answer_request(result)

    @may.happens(2, result=one_of(200, 500))
    def answer_request(self, result: int) -> None:
        if not self.worker.wire.in_flight:
            return
        request = self.worker.wire.in_flight[0]
        its = self.expected.known[request.delivery_id]
        if result == 200:
            its.end(DELIVERED)
        elif its.is_asked_to_end:
            its.end(CANCELLED)
        else:
            its.come_back()
            its.is_deferred = True
        self.worker.answer_all({request: result})

    @may.happens()
    def crash(self) -> None:
        for request in self.worker.wire.in_flight:
            its = self.expected.known[request.delivery_id]
            its.come_back(is_uncertain=True)
            if its.is_asked_to_end:
                its.end(CANCELLED)
        self.worker = SteppedWorker("worker", self.on_request)
        end_leases_of("worker")
        self.push(None)

    # --- how it happens --------------------------------------------------------------------------------

    def on_request(self, request: Request) -> None:
        its = self.expected.known[request.delivery_id]
        assert self.expected.is_pushed_next(its), "4.15, 9.8: nobody else has it"
        assert request.is_flagged == its.is_uncertain, "4.11: twice only with the flag"
        its.status = IN_FLIGHT

    def attend_and_fetch(self, is_attended: bool, most: int) -> None:
        if is_attended:
            while expire_overdue() or expire_unread() or return_overdue():
                pass
            self.expected.attend()
        self.fetch(most)

    def switch_all(self) -> None:
        for at in (0, 1):
            self.switch(at, most=0)

    def answer_all(self, result: int) -> None:
        while self.worker.wire.in_flight:
            self.answer_request(result)

    def stop_or_go_on(self, stop: tuple[str, int]) -> None:
        self.expected.stopped ^= {stop}
        how, at = stop
        one = self.subscriber if stop == ALL else self.subscriptions[at]
        fields = (PAUSES if how == "paused" else STATUSES)[stop not in self.expected.stopped]
        type(one).objects.filter(pk=one.pk).update(**fields)

    # --- what must hold --------------------------------------------------------------------------------

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

    def finish(self) -> None:
        """Let all that is unfinished be pushed or fetched, and acknowledged, without side_effects trouble."""
        self.set_up(is_ordered=False, most=None)
        for stop in [*self.expected.stopped]:
            self.stop_or_go_on(stop)
        for at in self.expected.pulled ^ {0}:
            self.switch(at, most=0)
        for _ in range(ROUNDS_TO_FINISH):
            if not self.expected.unfinished:
                return
            self.finish_round()
        pytest.fail(f"lost: {[*Delivery.objects.open().values()]}")

    def finish_round(self) -> None:
        self.pass_hours(is_attended=True, most=0)
        while self.expected.available(1):
            self.fetch(4)
            self.say(self.receipts[-4:], "ack", hours=2)
        self.push(200)
        self.answer_all(200)
        self.is_as_expected()


def hours_until(moment: datetime | None) -> int | None:
    """Return in how many hours it comes, the one under way included; an example lasts for less."""
    return None if moment is None else math.ceil((moment - datetime.now(UTC)) / timedelta(hours=1))


@pytest.mark.behaviour("9.1", "9.2", "9.3", "9.4", "9.6", "9.7", "9.8")
@pytest.mark.usefixtures("long_pauses", "storage")
@settings(
    max_examples=settings().max_examples // 8,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(seed=st.integers(0, 2**64 - 1))
def test_anything_goes_in_a_mailbox(seed: int) -> None:
    random, history = Random(seed), StatefulMailbox()  # noqa: S311 - nothing secret
    try:
        history.begin(were_pushed=random.random() < 0.5)
        for name, arguments in may.drawn(random, STEPS):
            note(f"{name} {arguments}")
            getattr(history, name)(**arguments)
            history.is_as_expected()
        history.finish()
    finally:
        for table in TABLES:
            execute(f"DELETE FROM {table}")
