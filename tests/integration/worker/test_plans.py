"""Nothing grows with what has been finished or waits for inactive subscriptions: what every hot statement reads."""

import datetime as dt
import os
from typing import Any

import pytest
from django.db import connection
from django.test import Client

from benchmarks import filling
from broker_project.core.db import forget_connection
from delivery.dispatch.claim import claim
from delivery.maintenance import periodic
from delivery.maintenance.partitions import open_days, today
from delivery.models import Delivery
from delivery.operations import cancel_deliveries_of
from delivery.status.delivery_search import in_flight
from delivery.status.line_status import held_lines, line_statuses, unfinished_of
from delivery.statuses import DeliveryStatus
from delivery.worker.buffer import KeyWalk, PageRequest
from delivery.worker.round_trip import mark_of
from delivery.worker.slots import SideEffects
from subscriptions.models import Processing, Subscriber, Subscription
from tests.support import broker
from tests.support.api import client_of, client_of_admin
from tests.support.broker import lines_with_due_work
from tests.support.database import execute
from tests.support.factories import event_type, subscriber, subscription
from tests.support.query_plans import costly_statements, explained_statements, prepared_statements, searching_plans

FINISHED, WAITING, RECEIVERS, DAYS = 100_000, 20_000, 20, 5
SEVERAL = "IN_FLIGHT,HELD,FAILED,REJECTED"
"""Statuses that few deliveries have."""
MAX_ROWS_PER_LIST = 25_000
"""A list in the admin is cut at a thousand; finding them among a few thousand is cheaper from one end on."""


class Grown:
    """A database with a history: finished deliveries, and waiting ones of inactive subscriptions."""

    def __init__(self) -> None:
        self.event_type = event_type()
        self.busy = [subscription(subscriber(f"busy-{number}"), self.event_type) for number in range(RECEIVERS)]
        self.parked = [subscription(one.subscriber) for one in self.busy]
        self.rare = subscription(subscriber("rare"), event_type())
        for one in self.parked:
            broker.inactivate(one)
        self.days = [today() - dt.timedelta(days=number) for number in range(DAYS, 0, -1)]
        for day in self.days:
            open_days(day, ahead=0)

    def finish(self, count: int) -> None:
        filling.finish(url(), receivers(self.busy), self.event_type.pk, count=count, days=self.days)

    def leave_waiting(self, count: int) -> None:
        filling.store_open(url(), receivers(self.parked), self.event_type.pk, count=count, day=self.days[0])

    def leave_retries(self, count: int) -> None:
        """Leave `count` deliveries in the retry line of a busy subscriber."""
        retries = [(broker.retry_line_of(self.busy[0].subscriber).pk, self.busy[0].pk)]
        filling.store_open(url(), retries, self.event_type.pk, count=count, day=self.days[0], attempts=1)


def url() -> str:
    """Return the address of the test's own database."""
    base, _, _ = os.environ["DATABASE_URL"].rpartition("/")
    return f"{base}/{connection.settings_dict['NAME']}"


def receivers(subscriptions: list[Subscription]) -> list[tuple[int, int]]:
    return [(broker.line_of(one.subscriber).pk, one.pk) for one in subscriptions]


@pytest.fixture
def queue_seen_empty(request: pytest.FixtureRequest) -> bool:
    """Whether statistics were taken of an empty queue; the plans must not fall for that."""
    return bool(getattr(request, "param", False))


@pytest.fixture
def grown(storage: None, queue_seen_empty: bool) -> Grown:
    made = Grown()
    made.finish(FINISHED)
    if queue_seen_empty:
        filling.settle_down(url())
        made.leave_waiting(WAITING)
    else:
        made.leave_waiting(WAITING)
        filling.settle_down(url())
    return made


def deliver_and_crash(grown: Grown) -> None:
    """Publish, sweep, claim, read, mark, settle, defer, let go, crash and mend; for one line."""
    one = grown.busy[0]
    line = broker.line_of(one.subscriber)
    broker.publish_numbered(grown.event_type, 10)
    assert line.pk in lines_with_due_work()
    driven, first, number = broker.crash_while_sending(line)
    second = broker.outgoing_of(driven.claim)[0]
    driven.numbers.last = number
    deferred = broker.settlement(driven, first, DeliveryStatus.PENDING, status_code=500, pause=0.0)
    for spares in (False, True):  # the second time as after a lock: it is safe to repeat
        broker.settle(driven, spares=spares, settlements=[deferred], marks=[mark_of(driven, second)])
    broker.settle(
        driven,
        settlements=[broker.settlement(driven, second)],
        states=[driven.update()],
    )
    broker.crash_while_sending(line)
    in_flight(None, key=None, downwards=True, limit=50)
    broker.expire_lease(line)
    assert len(claim([line.pk], worker="next")) == 1


def retry(grown: Grown) -> None:
    """Sweep, claim, read, mark, let go, crash and mend; for a retry line with a long backlog."""
    line = broker.retry_line_of(grown.busy[0].subscriber)
    assert line.pk in lines_with_due_work()
    driven, first, _ = broker.crash_while_sending(line)
    broker.settle(
        driven,
        settlements=[broker.settlement(driven, first)],
        states=[driven.update()],
    )
    broker.crash_while_sending(line)
    broker.expire_lease(line)
    assert len(claim([line.pk], worker="next")) == 1


def move_to_retry_line_and_suspend(grown: Grown) -> None:
    """Move one to the retry line, crash and mend; fail one that was never answered, suspend, try and resume."""
    one = grown.busy[1]
    line, retry_line = broker.line_of(one.subscriber), broker.retry_line_of(one.subscriber)
    broker.publish_numbered(grown.event_type, 5)
    driven, first, _ = broker.crash_while_sending(line)
    moved = SideEffects(to_line_id=retry_line.pk, meaning="retry_lane")
    pending: dict[str, Any] = {"status": DeliveryStatus.PENDING, "status_code": 500}
    broker.settle(driven, settlements=[broker.settlement(driven, first, **pending, pause=0.0, side_effects=moved)])
    broker.expire_lease(line)
    driven, second, _ = broker.crash_while_sending(line)
    announced = SideEffects(announces=True, meaning="end")
    unanswered: dict[str, Any] = {"status": DeliveryStatus.FAILED, "status_code": None, "reason": "no answer: gone"}
    third = broker.outgoing_of(driven.claim)[0]
    broker.settle(
        driven,
        settlements=[broker.settlement(driven, second, **unanswered, side_effects=announced)],
        marks=[mark_of(driven, third)],
    )
    config_version = third.destination.config_version
    suspends = SideEffects(suspends=True, config_version=config_version, probe=60.0, announces=True, meaning="suspend")
    broker.settle(
        driven,
        settlements=[broker.settlement(driven, third, **pending, side_effects=suspends)],
        states=[driven.update()],
    )
    Subscription.objects.filter(pk=one.pk).update(half_open=True, probe_due_at=None)
    driven, third, _ = broker.crash_while_sending(line)
    broker.settle(
        driven,
        settlements=[broker.settlement(driven, third, side_effects=SideEffects(resumes=True, announces=True))],
    )
    assert retry_line.pk in lines_with_due_work()
    broker.settle(driven, states=[driven.update()])


def look(grown: Grown) -> None:
    """Look at lines and subscriptions."""
    for line in grown.busy[0].subscriber.lines.all():
        line_statuses([line.pk])  # counts each line's backlog, to a limit
    held_lines()
    unfinished_of([one.pk for one in grown.parked])


def cancel(grown: Grown) -> None:
    """Cancel what one busy subscription has open, of which some is in flight."""
    broker.publish_numbered(grown.event_type, 5)
    broker.crash_while_sending(broker.line_of(grown.busy[1].subscriber))
    cancel_deliveries_of(grown.busy[1].pk, reason="unwanted")


@pytest.mark.behaviour("11.4")
@pytest.mark.parametrize(
    "queue_seen_empty",
    [pytest.param(False, id="queue seen full"), pytest.param(True, id="queue seen empty", marks=pytest.mark.lengthy)],
    indirect=True,
)
def test_no_hot_statement_reads_what_is_finished_or_parked(grown: Grown, monkeypatch: pytest.MonkeyPatch) -> None:
    grown.leave_retries(WAITING)
    with explained_statements(monkeypatch) as statements:
        deliver_and_crash(grown)
        retry(grown)
        move_to_retry_line_and_suspend(grown)
        look(grown)
        cancel(grown)
    assert len(statements) > 20
    assert costly_statements(statements) == []
    with explained_statements(monkeypatch) as statements:
        assert Delivery.objects.filter(reason="nowhere").count() == 0
    assert (statements[0].rows_read >= FINISHED + 2 * WAITING, len(costly_statements(statements))) == (True, 1)


@pytest.mark.behaviour("4.2", "5.3")
@pytest.mark.parametrize("retries", [0, 5_000])
def test_a_page_reads_little_of_its_line(storage: None, monkeypatch: pytest.MonkeyPatch, retries: int) -> None:
    wanted = event_type()
    busy = subscription(None, wanted)
    lines = [broker.line_of(busy.subscriber), broker.retry_line_of(busy.subscriber)]
    filling.store_open(url(), [(lines[0].pk, busy.pk)], wanted.pk, count=5_000, day=today())
    filling.store_open(url(), [(lines[1].pk, busy.pk)], wanted.pk, count=retries, day=today(), attempts=1)
    # What a vacuum in the middle of a burst makes of it: where the planner takes to bitmaps and sorts.
    execute("VACUUM delivery_open")
    with explained_statements(monkeypatch) as statements:
        for line in lines:
            broker.read_page(PageRequest(line.pk, line.epoch, 16))
    assert max(one.rows_read for one in statements) < 500


@pytest.mark.behaviour("4.18")
@pytest.mark.parametrize("keyless", [0, 5_000])
def test_a_page_by_keys_reads_little_of_its_line(storage: None, monkeypatch: pytest.MonkeyPatch, keyless: int) -> None:
    wanted = event_type()
    busy = subscription(None, wanted)
    line = broker.line_of(busy.subscriber)
    filling.store_open(url(), [(line.pk, busy.pk)], wanted.pk, count=keyless, day=today())
    Subscriber.objects.update(processing=Processing.KEYED, concurrency=4, ordering_key="$$->>'Body'")
    newest = Subscriber.objects.get().keyless_until
    filling.store_open(url(), [(line.pk, busy.pk)], wanted.pk, count=5_000, day=today())
    execute("UPDATE delivery_open SET ordering_key = id %% 100 WHERE id > %s", [newest])
    execute("VACUUM delivery_open")
    asked = PageRequest(line.pk, line.epoch, 16, is_concurrent=True, walk=KeyWalk("", 8, 2, (), (), 0))
    with explained_statements(monkeypatch) as statements:
        broker.read_page(asked)
    assert max(one.rows_read for one in statements) < 100


@pytest.mark.behaviour("11.4")
def test_no_plan_depends_on_what_waits_when_it_is_made(storage: None) -> None:
    grown = Grown()
    forget_connection()
    deliver_and_crash(grown)
    move_to_retry_line_and_suspend(grown)
    cancel(grown)
    look(grown)
    periodic.run_periodic_jobs()
    for job in periodic.JOBS.values():
        job()
    assert searching_plans(prepared_statements(), fewest=25) == []


def read_lists(client: Client, path: str, names: dict[str, str], grown: Grown) -> None:
    """Read lists of deliveries by everything they can be narrowed by, also where nothing is found."""
    narrowed: list[dict[str, Any]] = [
        {},
        *({names["subscription"]: one.pk} for one in (grown.rare, grown.busy[0], grown.parked[0])),
    ]
    for query in narrowed:
        for status in [None, *DeliveryStatus.values]:
            asked = {**query, **({names["status"]: status} if status else {})}
            assert client.get(path, asked).status_code == 200
    of_message: dict[str, Any] = {names["message"]: Delivery.objects.final().order_by("-id")[0].message_id}
    assert client.get(path, of_message).status_code == 200


@pytest.mark.lengthy
def test_no_list_of_the_api_reads_further_than_it_shows(grown: Grown, monkeypatch: pytest.MonkeyPatch) -> None:
    names = {"status": "status", "subscription": "subscription", "message": "message"}
    grown.leave_retries(WAITING)
    broker.publish_numbered(grown.event_type, 1)
    broker.crash_while_sending(broker.line_of(grown.busy[0].subscriber))
    with explained_statements(monkeypatch) as statements:
        read_lists(client_of(), "/api/v1/deliveries", names, grown)
        for one in ("busy-0", "rare"):
            owner = Subscriber.objects.get(name=one)
            for query in ("", *(f"?status={one}" for one in ("PENDING", "HELD", "REJECTED", "CANCELLED", SEVERAL))):
                assert client_of(owner).get(f"/api/v1/deliveries{query}").status_code == 200
        assert client_of().get(f"/api/v1/deliveries?status={SEVERAL}").status_code == 200
        for event in (grown.event_type, grown.rare.event_type):
            assert client_of().get("/api/v1/messages", {"event_type": str(event)}).status_code == 200
        for query in ("", "?outcome=UNROUTED"):
            assert client_of().get(f"/api/v1/messages{query}").status_code == 200
    assert costly_statements(statements) == []


@pytest.mark.lengthy
def test_no_list_of_the_admin_reads_further_than_it_shows(grown: Grown, monkeypatch: pytest.MonkeyPatch) -> None:
    names = {"status": "status__exact", "subscription": "subscription__id__exact", "message": "message__id"}
    admin = client_of_admin()
    grown.leave_retries(WAITING)
    with explained_statements(monkeypatch) as statements:
        read_lists(admin, "/admin/delivery/delivery/", names, grown)
        for one in (grown.rare, grown.busy[0]):
            for line in one.subscriber.lines.all():
                assert admin.get("/admin/delivery/delivery/", {"line__id__exact": line.pk}).status_code == 200
            query: dict[str, Any] = {"event_type__id__exact": one.event_type_id}
            assert admin.get("/admin/delivery/message/", query).status_code == 200
        for page in ("attempt", "line", "message"):
            assert admin.get(f"/admin/delivery/{page}/").status_code == 200
    assert costly_statements(statements, MAX_ROWS_PER_LIST, MAX_ROWS_PER_LIST) == []
