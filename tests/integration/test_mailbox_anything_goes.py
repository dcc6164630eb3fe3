"""Whatever happens in whatever order: a message has one holder, and ends as was said of it last (behaviour 9)."""

from dataclasses import dataclass
from typing import Final

import pytest
from django.db import connection
from hypothesis import HealthCheck, note, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from delivery.mailboxes.answering import acknowledge, extend, give_back
from delivery.mailboxes.expiring import expire_unread
from delivery.mailboxes.fetching import fetch
from delivery.mailboxes.purging import purge
from delivery.mailboxes.receipts import Receipt
from delivery.mailboxes.results import ReceiptCode, Result
from delivery.mailboxes.returning import return_overdue
from delivery.models import UNTIL_RETURNED, Delivery
from delivery.settling.cancelling import cancel_deliveries_of
from delivery.waking.claiming import end_leases_of
from delivery.waking.sweeping import lines_with_due_work
from subscriptions.models import DeliveryMode, Status, Subscriber, Subscription
from tests.anything_goes import TABLES
from tests.driving import publish_bodies
from tests.factories import subscriber, subscription
from tests.mailboxes import age, box_of, switch, time_out
from tests.stepping import Request, SteppedWorker

PUSH, PULL = DeliveryMode.PUSH, DeliveryMode.PULL
TWELVE_HOURS: Final = 43_200
WAITING, ASIDE, OUT, LATE, PUSHED = "waiting", "aside", "out", "late", "pushed"
STATUSES: Final = {WAITING: "PENDING", ASIDE: "PENDING", OUT: "IN_FLIGHT", LATE: "IN_FLIGHT", PUSHED: "IN_FLIGHT"}
which = st.integers(0, 1)
says = st.sampled_from(["ack", "nack", "extend"])


@dataclass(slots=True)
class Known:
    """What a delivery is expected to be."""

    subscription_id: int
    state: str = WAITING
    """One of the above, or the status that it has ended with."""
    fetches: int = 0
    is_asked_to_end: bool = False

    @property
    def status(self) -> str:
        return STATUSES.get(self.state, self.state)


class Mailbox(RuleBasedStateMachine):
    """Two subscriptions of one mailbox, a worker for what of them is pushed, and what can happen to them."""

    def __init__(self) -> None:
        super().__init__()
        self.subscriber = subscriber(ack_seconds=TWELVE_HOURS)
        self.subscriptions = [subscription(self.subscriber, delivery_mode=PULL) for _ in range(2)]
        self.stranger = subscriber()
        self.modes = {one.pk: PULL for one in self.subscriptions}
        self.inactive: set[int] = set()
        self.is_ordered = False
        self.most: int | None = None
        """How often a message may be handed out again."""
        self.known: dict[int, Known] = {}
        self.receipts: list[Receipt] = []
        self.said: dict[Receipt, ReceiptCode] = {}
        """What each receipt was answered that has done something."""
        self.worker = SteppedWorker("worker", self.on_request)

    # --- what can happen -------------------------------------------------------------------------------

    @initialize()
    def begin(self) -> None:
        for at in (0, 1):
            self.publish(at, 2)

    @rule(at=which, count=st.integers(1, 3))
    def publish(self, at: int, count: int) -> None:
        one = self.subscriptions[at]
        publish_bodies(one.event_type, *[b"%d" % number for number in range(count)])
        new = Delivery.objects.exclude(pk__in=self.known).values_list("pk", flat=True)
        if one.pk not in self.inactive:
            assert len(new) == count
        self.known |= {delivery_id: Known(one.pk) for delivery_id in new}

    @rule(most=st.integers(1, 4))
    def fetch(self, most: int) -> None:
        expected = self.available(1 if self.is_ordered else most)
        messages = fetch(box_of(self.subscriber), most=most)
        assert [one.delivery_id for one in messages] == expected, "9.1, 9.3, 9.7: the oldest that nobody holds"
        for one in messages:
            its = self.known[one.delivery_id]
            assert one.fetch == its.fetches + 1, "9.2"
            its.state, its.fetches = OUT, one.fetch
        self.receipts += [one.receipt for one in messages]

    @rule(most=st.integers(1, 4), what=says)
    def fetch_and_say(self, most: int, what: str) -> None:
        self.fetch(most)
        for receipt in self.receipts[-1:]:
            self.say(receipt, what)

    @rule(at=st.integers(0, 9), what=says)
    @precondition(lambda self: self.receipts)
    def say_of_a_new_one(self, at: int, what: str) -> None:
        self.say(self.receipts[-1 - at % len(self.receipts)], what)

    @rule(at=st.integers(0, 99), what=says)
    @precondition(lambda self: self.receipts)
    def say_of_any(self, at: int, what: str) -> None:
        self.say(self.receipts[at % len(self.receipts)], what)

    @rule(is_attended=st.booleans())
    def pass_time(self, is_attended: bool) -> None:
        """Let every hand-out time out, and every pause be over; perhaps before anybody has seen to it."""
        time_out()
        Delivery.objects.open().filter(due_at__lt=UNTIL_RETURNED).update(due_at="2026-01-01T00:00:00Z")
        for one in self.known.values():
            one.state = {OUT: LATE, ASIDE: WAITING}.get(one.state, one.state)
        if is_attended:
            self.attend()

    def attend(self) -> None:
        while return_overdue():
            pass
        for one in self.among(LATE):
            if self.ends_in_vain(one):
                one.state = "CANCELLED" if one.is_asked_to_end else "FAILED"
            elif self.modes[one.subscription_id] == PUSH:
                one.state = WAITING

    @rule()
    def pass_four_days(self) -> None:
        age(days=4)
        while expire_unread():
            pass
        for one in self.among(WAITING, ASIDE, LATE):
            if self.modes[one.subscription_id] == PULL and one.subscription_id not in self.inactive:
                one.state = "EXPIRED"

    @rule(at=which)
    def switch(self, at: int) -> None:
        its = self.subscriptions[at].pk
        self.modes[its] = PUSH if self.modes[its] == PULL else PULL
        switch(self.subscriptions[at], self.modes[its])

    @rule(at=which)
    def turn_off_or_on(self, at: int) -> None:
        self.inactive ^= {self.subscriptions[at].pk}
        status = Status.INACTIVE if self.subscriptions[at].pk in self.inactive else Status.ACTIVE
        Subscription.objects.filter(pk=self.subscriptions[at].pk).update(status=status)

    @rule(at=which)
    def cancel(self, at: int) -> None:
        cancel_deliveries_of(self.subscriptions[at].pk, reason="cancelled")
        self.note_cancelled(self.subscriptions[at].pk)

    @rule()
    def purge(self) -> None:
        assert purge(self.subscriber.pk, seconds=60).is_complete
        for subscription_id in [one for one, mode in self.modes.items() if mode == PULL]:
            self.note_cancelled(subscription_id)

    @rule(is_ordered=st.booleans(), most=st.sampled_from([None, None, 0, 1, 2]))
    def set_up(self, is_ordered: bool, most: int | None) -> None:
        self.is_ordered, self.most = is_ordered, most
        Subscriber.objects.filter(pk=self.subscriber.pk).update(mailbox_ordered=is_ordered, max_redeliveries=most)

    @rule()
    def push(self) -> None:
        self.worker.take(lines_with_due_work())

    @rule(result=st.sampled_from([200, 500]))
    @precondition(lambda self: self.worker.wire.under_way)
    def answer_request(self, result: int) -> None:
        request = self.worker.wire.under_way[0]
        its = self.known[request.delivery_id]
        if result == 200:
            its.state = "DELIVERED"
        else:
            its.state = "CANCELLED" if its.is_asked_to_end else ASIDE
        self.worker.answer(request, result)

    @rule()
    @precondition(lambda self: self.worker.lines)
    def crash(self) -> None:
        for one in self.among(PUSHED):
            one.state = "CANCELLED" if one.is_asked_to_end else WAITING
        self.worker = SteppedWorker("worker", self.on_request)
        end_leases_of("worker")
        self.push()

    # --- how it happens --------------------------------------------------------------------------------

    def on_request(self, request: Request) -> None:
        its = self.known[request.delivery_id]
        assert (its.state, self.modes[its.subscription_id]) == (WAITING, PUSH), "4.15, 9.8: nobody else has it"
        assert its.subscription_id not in self.inactive
        its.state = PUSHED

    def among(self, *states: str) -> list[Known]:
        return [one for one in self.known.values() if one.state in states]

    def ends_in_vain(self, one: Known) -> bool:
        return one.is_asked_to_end or (self.most is not None and one.fetches > self.most)

    def note_cancelled(self, subscription_id: int) -> None:
        for one in self.known.values():
            if one.subscription_id == subscription_id:
                one.is_asked_to_end |= one.state in {OUT, PUSHED}
                one.state = "CANCELLED" if one.state in {WAITING, ASIDE, LATE} else one.state

    def available(self, most: int) -> list[int]:
        """Return what a fetch of so many has to get."""
        if self.is_ordered and (
            self.among(OUT) or PULL in [self.modes[one.subscription_id] for one in self.among(PUSHED)]
        ):
            return []
        there = [
            delivery_id
            for delivery_id, one in sorted(self.known.items())
            if self.modes[one.subscription_id] == PULL
            and one.subscription_id not in self.inactive
            and (one.state in {WAITING, ASIDE} or (one.state == LATE and not self.ends_in_vain(one)))
        ]
        return there[:most]

    def say(self, receipt: Receipt, what: str) -> None:
        expected = self.expected(what, receipt)
        result = self.answer(what, self.subscriber.pk, receipt)
        note(f"{what} {receipt}: {result.code}")
        assert self.answer(what, self.stranger.pk, receipt).code == ReceiptCode.UNKNOWN
        if expected:
            assert (result.code, result.status) == (expected, 200)
            self.said[receipt] = expected
        elif result.status == 200:
            assert self.said.get(receipt) == result.code, "9.4: only what it has done is confirmed again"

    def expected(self, what: str, receipt: Receipt) -> ReceiptCode | None:
        """Note what a receipt does, if it does anything; return what it is answered then."""
        its = self.known[receipt.delivery_id]
        if receipt.fetch != its.fetches or its.state not in {OUT, LATE}:
            return None
        if what == "ack":
            its.state = "DELIVERED"
            return ReceiptCode.ACKNOWLEDGED
        if what == "extend":
            if self.is_ordered and its.state == LATE:
                return None
            its.state = OUT
            return ReceiptCode.EXTENDED
        if self.ends_in_vain(its):
            its.state = "CANCELLED" if its.is_asked_to_end else "FAILED"
            return ReceiptCode(its.state.lower())
        its.state = WAITING
        return ReceiptCode.RETURNED

    def answer(self, what: str, subscriber_id: int, receipt: Receipt) -> Result:
        if what == "extend":
            return extend(subscriber_id, [receipt], seconds=TWELVE_HOURS)[receipt]
        return {"ack": acknowledge, "nack": give_back}[what](subscriber_id, [receipt])[receipt]

    # --- what must hold --------------------------------------------------------------------------------

    @invariant()
    def is_as_expected(self) -> None:
        rows = Delivery.objects.values_list("id", "status", "fetches", "fetched_until")
        found = {delivery_id: (status, fetches, bool(until)) for delivery_id, status, fetches, until in rows}
        assert found == {
            delivery_id: (one.status, one.fetches, one.state in {OUT, LATE}) for delivery_id, one in self.known.items()
        }

    def teardown(self) -> None:
        try:
            self.finish()
        finally:
            with connection.cursor() as cursor:
                for table in TABLES:
                    cursor.execute(f"DELETE FROM {table}")  # noqa: S608 - names of ours

    def finish(self) -> None:
        """Let all that is unfinished be fetched and acknowledged, without further trouble."""
        self.set_up(is_ordered=False, most=None)
        for at, one in enumerate(self.subscriptions):
            self.make_fetchable(at, one)
        while self.worker.wire.under_way:
            self.answer_request(200)
        self.pass_time(is_attended=True)
        while self.available(1):
            self.fetch(4)
            for receipt in self.receipts:
                self.say_acknowledged(receipt)
        self.is_as_expected()
        assert not self.among(*STATUSES), "nothing is lost"

    def make_fetchable(self, at: int, one: Subscription) -> None:
        if one.pk in self.inactive:
            self.turn_off_or_on(at)
        if self.modes[one.pk] == PUSH:
            self.switch(at)

    def say_acknowledged(self, receipt: Receipt) -> None:
        self.expected("ack", receipt)
        self.answer("ack", self.subscriber.pk, receipt)


@pytest.mark.behaviour("9.2", "9.3", "9.8")
@pytest.mark.usefixtures("long_pauses")
def test_anything_goes_in_a_mailbox(storage: None) -> None:
    run_state_machine_as_test(
        Mailbox, settings=settings(max_examples=settings().max_examples // 2, suppress_health_check=[*HealthCheck])
    )
