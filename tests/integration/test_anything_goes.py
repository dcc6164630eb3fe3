"""Whatever happens in whatever order: nothing lost, nothing doubled, nothing overtaken (behaviour 1.7 to 1.8, 4)."""

from collections import Counter, defaultdict
from typing import Any

import pytest
from hypothesis import note
from hypothesis import strategies as st
from hypothesis.stateful import invariant, precondition, rule

from delivery.driving import batches
from delivery.models import Delivery, Lane, Line, LineEvent
from delivery.rules.statuses import DeliveryStatus
from delivery.settling.holding import release
from delivery.settling.settlements import Settlement, Withheld
from subscriptions.models import Status, Subscriber, Subscription
from subscriptions.scripts.jobs import Failed, Lost, Made, NotRun, Result
from tests.anything_goes import NO_ANSWERS, AnythingGoes, try_anything, which, workers
from tests.driving import activate, inactivate
from tests.factories import event_type, subscriber, subscription
from tests.stepping import Database, Request, SteppedWorker

CANCELLED, HELD, IN_FLIGHT = DeliveryStatus.CANCELLED, DeliveryStatus.HELD, DeliveryStatus.IN_FLIGHT
PENDING = DeliveryStatus.PENDING
HOLD, SET_ASIDE = ("PENDING", True), ("PENDING", False)
MEANS: dict[int | str, tuple[str, bool]] = {
    200: ("DELIVERED", True),
    302: ("3xxNOTSUPPORTED", True),
    404: ("REJECTED", True),
    500: SET_ASIDE,
    503: HOLD,
    "refused": HOLD,
    "lost": HOLD,
    "cut": HOLD,
}
RESULTS: list[Result] = [Made(), Made(b"made"), Failed("thrown"), Lost("gone"), NotRun()]


class Broker(AnythingGoes):
    """Two subscribers, three subscriptions, two workers, and everything that can happen to them."""

    may_be_answered = (200, 200, 200, 302, 404, 500, 500, 503, *NO_ANSWERS)

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        first, second = subscriber(), subscriber()
        shared = event_type()
        self.subscriptions = [
            subscription(first, shared),
            subscription(first, script="made up"),
            subscription(second, shared),
        ]
        self.subscribers = [first, second]
        self.lines = {line.subscriber_id: line.pk for line in Line.objects.filter(lane=Lane.MAIN)}
        self.now = 0
        """Counts what happens."""
        self.inactive_at: dict[tuple[str, int], int] = defaultdict(lambda: -1)
        """When a subscription or subscriber was last inactive."""
        self.read_at: dict[Any, tuple[object, int]] = {}
        """The page a line has in hand, and when it was read."""
        self.interrupted: set[int] = set()
        """Under way when its worker vanished or froze."""
        self.cut: set[int] = set()
        """Not answered, though it may have arrived."""
        self.withheld: set[int] = set()
        """Held or set aside because of their scripts: others may overtake them."""
        self.heads: dict[int, tuple[int, int]] = {}
        """By line: the delivery that must not be overtaken, and since when; a line forgets one that is inactive."""
        self.numbers: dict[int, int] = {}
        """By delivery."""
        self.last_number: Counter[int] = Counter()
        """By line."""

    # --- what can happen -------------------------------------------------------------------------------

    @rule(at=which, count=st.integers(1, 4))
    def publish(self, at: int, count: int) -> None:
        self.publish_to(self.subscriptions[at].event_type, count)

    @rule(worker=workers, result=st.sampled_from(RESULTS))
    def end_script(self, worker: int, result: Result) -> None:
        self.end_script_of(self.workers[worker], result)

    @rule(result=st.sampled_from(RESULTS))
    @precondition(lambda self: self.frozen)
    def thaw_script(self, result: Result) -> None:
        self.end_script_of(self.frozen[0], result)

    @rule()
    def release(self) -> None:
        release([*Delivery.objects.open().filter(status=HELD).values_list("pk", flat=True)])

    @rule(at=which)
    def switch_subscriber(self, at: int) -> None:
        self.switch_one(Subscriber.objects.get(pk=self.subscriptions[at].subscriber_id))

    # --- how it happens --------------------------------------------------------------------------------

    def switch_one(self, one: Subscription | Subscriber) -> None:
        if one.status == Status.ACTIVE:
            inactivate(one)
        else:
            self.activate(one)

    def activate(self, one: Subscription | Subscriber) -> None:
        self.inactive_at[type(one).__name__, one.pk] = self.now
        activate(one)

    def on_abandoned(self, row: Delivery) -> None:
        self.interrupted.add(row.pk)
        self.note_number(row.pk, row.line_id or 0, row.sequence or 0)
        self.heads[row.line_id or 0] = row.pk, self.now

    def end_script_of(self, worker: SteppedWorker, result: Result) -> None:
        if worker.scripts.running:
            worker.finish_script(0, result)
        self.forget_thawed()

    def on_recorded(self, settlement: Settlement, epoch: int) -> None:
        delivery_id, line_id = settlement.delivery_id, settlement.line_id
        request = self.recorded_now(settlement, epoch)
        assert (settlement.status.value, settlement.pause is None) == MEANS[request.result], "4.3 to 4.8"
        self.cut |= {delivery_id} if settlement.uncertain else set()
        if settlement.unsent:
            assert self.numbers.pop(delivery_id) == self.last_number[line_id]
            self.last_number[line_id] -= 1
        stays = settlement.status == PENDING
        if not Delivery.objects.open().filter(pk=delivery_id).exists():
            self.ended[delivery_id] = CANCELLED.value if stays else settlement.status.value
        assert delivery_id in self.ended or delivery_id not in self.asked, "what is cancelled ends"
        if stays and settlement.pause is None:
            self.heads[line_id] = delivery_id, self.now
        elif self.heads.get(line_id, (0, 0))[0] == delivery_id:
            del self.heads[line_id]

    def on_withheld(self, withheld: Withheld) -> None:
        row = Delivery.objects.open().filter(pk=withheld.delivery_id).first()
        assert row is None or row.status == withheld.status, "8.3, unless it was cancelled"
        self.withheld.add(withheld.delivery_id)
        if self.heads.get(withheld.line_id, (0, 0))[0] == withheld.delivery_id:
            del self.heads[withheld.line_id]

    def note_number(self, delivery_id: int, line_id: int, number: int) -> None:
        if delivery_id in self.numbers:
            assert self.numbers[delivery_id] == number, "a delivery keeps its number"
        else:
            assert number == self.last_number[line_id] + 1, "numbers rise by one"
            self.numbers[delivery_id] = self.last_number[line_id] = number

    # --- what must hold at each request ----------------------------------------------------------------

    def on_request(self, request: Request) -> None:
        note(f"request {request.delivery_id} number {request.sequence} flagged {request.is_flagged}")
        row = Delivery.objects.open().get(pk=request.delivery_id)
        assert (row.status, row.sequence) == (IN_FLIGHT, request.sequence)
        assert request.delivery_id not in self.ended, "nothing is sent that has ended"
        assert self.is_active(row), "nothing is sent to what is not active"
        assert Line.objects.get(pk=request.line_id).epoch == request.epoch, "only who owns a line sends"
        self.check_flag(request)
        self.check_alone(request)
        self.check_turn(request, row)
        self.note_number(request.delivery_id, request.line_id, request.sequence)
        self.requests.append(request)

    def check_flag(self, request: Request) -> None:
        unknown = request.delivery_id in self.interrupted or request.delivery_id in self.cut
        unknown |= any(not earlier.is_recorded for earlier in self.of(request.delivery_id))
        assert request.is_flagged == unknown, "flagged where an earlier outcome is unknown"

    def check_alone(self, request: Request) -> None:
        others = [
            other
            for worker in self.workers
            for other in worker.wire.under_way
            if other is not request and (other.line_id, other.epoch) == (request.line_id, request.epoch)
        ]
        assert not others, "one at a time"

    def check_turn(self, request: Request, row: Delivery) -> None:
        hand, read_at = self.read_at.get(request.line, (None, 0))
        if hand is not request.line.hand:
            read_at = self.now
            self.read_at[request.line] = request.line.hand, read_at
        head, since = self.heads.get(request.line_id, (row.pk, 0))
        if head != row.pk and head not in self.ended:
            assert not self.could_be_sent(head, min(since, read_at)), "the head is not overtaken"
            del self.heads[request.line_id]
        if row.pk not in self.numbers:
            for older in self.published:
                is_mine = self.published[older].line_id == row.line_id and older not in self.withheld
                if older < row.pk and is_mine and older not in self.numbers:
                    assert not self.could_be_sent(older, read_at), "what is older is sent first"

    def could_be_sent(self, delivery_id: int, read_at: int) -> bool:
        """Tell whether a delivery was to be had when the page was read, and still is."""
        row = Delivery.objects.open().filter(pk=delivery_id).first()
        return bool(row and self.is_active(row) and self.was_active(row, read_at))

    def is_active(self, row: Delivery) -> bool:
        one = Subscription.objects.select_related("subscriber").get(pk=row.subscription_id or 0)
        return one.status == one.subscriber.status == Status.ACTIVE

    def was_active(self, row: Delivery, since: int) -> bool:
        one = Subscription.objects.get(pk=row.subscription_id or 0)
        both = ("Subscription", one.pk), ("Subscriber", one.subscriber_id)
        return all(self.inactive_at[thing] < since for thing in both)

    @invariant()
    def count(self) -> None:
        self.now += 1

    # --- what must hold in the end ---------------------------------------------------------------------

    def activate_all(self) -> None:
        things: list[Subscription | Subscriber] = [*self.subscriptions, *self.subscribers]
        for one in things:
            self.activate(one)

    def finish_round(self) -> None:
        self.now += 1
        self.release()
        super().finish_round()

    def finish_with(self, worker: SteppedWorker) -> None:
        for _script in [*worker.scripts.running]:
            self.end_script_of(worker, Made(b"made"))
        super().finish_with(worker)

    def check_books(self) -> None:
        super().check_books()
        told = {*LineEvent.objects.values_list("line_id", "sequence")}
        for line_id in self.lines.values():
            mine = [request for request in self.requests if request.line_id == line_id]
            arrived = {request.sequence for request in mine if request.may_have_arrived}
            missing = {*range(1, self.last_number[line_id] + 1)} - arrived
            assert missing <= {number for line, number in told if line == line_id}, "gaps are told"
            assert len([request for request in mine if not request.is_recorded]) <= self.unclean_ends[line_id]


@pytest.mark.behaviour("4.10", "4.11", "11.3")
def test_anything_goes(storage: None, monkeypatch: pytest.MonkeyPatch) -> None:
    database = Database()
    monkeypatch.setattr(batches, "settle", database)
    try_anything(Broker, database)
