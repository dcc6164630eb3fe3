"""In any history a message has one holder at a time, and its last receipt says how it ends (contract 9)."""

from datetime import timedelta
from random import Random
from typing import Final

import pytest
from django.db.models import F
from hypothesis import HealthCheck, Phase, given, note, settings
from hypothesis import strategies as st

from delivery.dispatch.claim import end_leases_of
from delivery.mailbox.unread import expire_unread, purge, return_overdue
from delivery.maintenance.expiry import expire_overdue
from delivery.models import Delivery
from delivery.operations import cancel_deliveries_of
from subscriptions.models import DeliveryMode, Status, Subscriber
from tests.support.broker import lines_with_due_work, make_due, publish_bodies
from tests.support.database import execute
from tests.support.expected_mailbox import (
    ALL,
    AN_HOUR,
    CANCELLED,
    DELIVERED,
    HOURS,
    IN_FLIGHT,
    STOPS,
    Clients,
    Known,
    counts,
    may,
    perhaps,
    which,
    yes_or_no,
)
from tests.support.mailboxes import let_days_pass, switch_delivery_mode
from tests.support.random_data import one_of
from tests.support.stateful_deliveries import TABLES
from tests.support.stepped_worker import Request, SteppedWorker

LONG_AGO: Final = "2026-01-01T00:00:00Z"
STEPS: Final = 50
ROUNDS_TO_FINISH: Final = 20
MANY: Final = 8
"""Unfinished, beyond which no more are published."""
STATUSES: Final = ({"status": Status.INACTIVE}, {"status": Status.ACTIVE})
PAUSES: Final = ({"paused_since": LONG_AGO, "paused_by": "HAND"}, {"paused_since": None, "paused_by": ""})


class StatefulMailbox(Clients):
    """What else happens to the mailbox; a worker pushes what it has not to itself."""

    def __init__(self) -> None:
        super().__init__()
        self.worker = SteppedWorker("worker", self.on_request)

    # --- what can happen -------------------------------------------------------------------------------

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
        self.expected.pass_days(days)
        self.attend_and_fetch(is_attended, most)

    @may.happens(2, at=which, most=perhaps)
    def switch(self, at: int, most: int) -> None:
        self.expected.switch(at)
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
        self.expected.stop_or_go_on(stop)
        how, at = stop
        one = self.subscriber if stop == ALL else self.subscriptions[at]
        fields = (PAUSES if how == "paused" else STATUSES)[stop not in self.expected.stopped]
        type(one).objects.filter(pk=one.pk).update(**fields)

    # --- what must hold --------------------------------------------------------------------------------

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
