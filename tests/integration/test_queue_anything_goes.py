"""Whatever happens in whatever order: each QUEUE message is taken once, by one of each group (behaviour 4.11, 6)."""

from collections import Counter

import pytest
from hypothesis import note
from hypothesis import strategies as st
from hypothesis.stateful import rule

from delivery.models import Delivery, Line, PageRead, QueueGroup
from delivery.statuses import DeliveryStatus
from delivery.worker import pending_settles, queue_settle
from delivery.worker.settlements import Settlement
from subscriptions.models import EventKind, Status, Subscription
from tests.anything_goes import NO_ANSWERS, AnythingGoes, try_anything
from tests.factories import event_type, subscription
from tests.stepping import UNDER_WAY, Database, Request

CANCELLED, DELIVERED, PENDING, REDUNDANT = "CANCELLED", "DELIVERED", "PENDING", "REDUNDANT"
ENDS: dict[int | str, str] = {200: DELIVERED, 302: "3xxNOTSUPPORTED", 404: "REJECTED"}


class Broker(AnythingGoes):
    """Two groups, of two subscriptions and of one, two workers, and everything that can happen to them."""

    may_be_answered = (200, 302, 404, 404, 500, 503, 600, *NO_ANSWERS)

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self.event_type = event_type(kind=EventKind.QUEUE)
        self.subscriptions = [subscription(event_type=self.event_type) for _ in range(2)]
        self.subscriptions += [subscription(event_type=self.event_type, filter="$$->'Header' is not null")]
        self.doubtful: set[int] = set()
        """Groups that had a request of which nobody knows what came of it."""

    # --- what can happen -------------------------------------------------------------------------------

    @rule(count=st.integers(1, 4))
    def publish(self, count: int) -> None:
        self.publish_to(self.event_type, count)

    # --- how it happens --------------------------------------------------------------------------------

    def on_abandoned(self, row: Delivery) -> None:
        self.doubtful.add(row.group_id or 0)

    def on_recorded(self, settlement: Settlement, epoch: int) -> None:
        delivery_id, group_id = settlement.delivery_id, self.group_of(settlement.delivery_id)
        status = ENDS.get(self.recorded_now(settlement, epoch).result, PENDING)
        assert settlement.status.value == status, "6.4, 6.5"
        if settlement.uncertain:
            self.doubtful.add(group_id)
        if status != PENDING or delivery_id in self.asked:
            self.ended[delivery_id] = CANCELLED if status == PENDING else status
        if status == DELIVERED:
            self.ended = dict.fromkeys(self.members(group_id), REDUNDANT) | self.ended

    # --- what must hold at each request ----------------------------------------------------------------

    def on_request(self, request: Request) -> None:
        note(f"request {request.delivery_id} attempt {request.attempt} flagged {request.is_flagged}")
        group_id = self.group_of(request.delivery_id)
        row = Delivery.objects.open().get(pk=request.delivery_id)
        assert (row.status, row.line_id) == (DeliveryStatus.IN_FLIGHT, request.line_id)
        assert QueueGroup.objects.filter(pk=group_id).exists(), "nothing is sent for a group that has a winner"
        assert Subscription.objects.get(pk=row.subscription_id or 0).status == Status.ACTIVE
        assert Line.objects.get(pk=request.line_id).epoch == request.epoch, "only who owns a line sends"
        others = [one for one in self.requests if self.group_of(one.delivery_id) == group_id]
        assert request.attempt == 1 + len([one for one in others if one.is_recorded])
        assert request.is_flagged == (group_id in self.doubtful), "flagged where an earlier outcome is unknown"
        assert all(one.is_recorded or one.epoch < request.epoch for one in others), "one endpoint at a time"
        self.requests.append(request)
        mine = [one for one in request.line.strands if one.under_way]
        assert len(mine) <= UNDER_WAY

    def group_of(self, delivery_id: int) -> int:
        return self.published[delivery_id].group_id or 0

    def members(self, group_id: int) -> list[int]:
        return [row.pk for row in self.published.values() if row.group_id == group_id]

    # --- what must hold in the end ---------------------------------------------------------------------

    def check_books(self) -> None:
        super().check_books()
        books = self.ended
        winners = Counter(self.group_of(one) for one, status in books.items() if status == DELIVERED)
        assert max(winners.values(), default=0) <= 1
        redundant = {self.group_of(one) for one, status in books.items() if status == REDUNDANT}
        assert redundant <= winners.keys(), "nothing is redundant where nobody took it"
        assert not QueueGroup.objects.exists()
        lost = Counter(request.line_id for request in self.requests if not request.is_recorded)
        # A line that cannot know what it has marked is dropped.
        most = {line_id: UNDER_WAY * (self.unclean_ends[line_id] + self.changes_amid_failures) for line_id in lost}
        assert all(number <= most[line_id] for line_id, number in lost.items())
        notes = Counter(PageRead.objects.values_list("line_id", flat=True))
        assert max(notes.values(), default=0) <= 1, "what is noted for mending does not grow"


@pytest.mark.behaviour("4.11", "6.4", "6.5")
def test_anything_goes_in_queues(storage: None, monkeypatch: pytest.MonkeyPatch) -> None:
    database = Database(queue_settle.settle_groups)
    monkeypatch.setattr(pending_settles, "settle_groups", database)
    try_anything(Broker, database)
