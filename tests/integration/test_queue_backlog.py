"""What a QUEUE message costs does not grow with the groups that wait, for whatever reason they do."""

from collections.abc import Callable

import pytest
from django.db import connection
from django.urls import reverse

from delivery.dispatch.sweep import lines_with_due_work
from delivery.models import Delivery, Line, QueueGroup
from delivery.operations import cancel_deliveries_of, release
from delivery.status.queue_status import groups_of, senders
from subscriptions.models import EventKind, Subscription
from tests import factories
from tests.clients import client_of, client_of_admin
from tests.driving import inactivate, publish_bodies, working
from tests.plans import explaining
from tests.receiver import Receiver, answer, wait_until

WAITING = 20_000
FEW = 200
COUNTED = 1_000
"""A sender's groups are counted to a limit, each kind for itself."""

BACKLOG = """
WITH lines AS (SELECT array_agg(id ORDER BY sender) AS ids FROM delivery_line WHERE lane = 'queue'),
groups AS (
  INSERT INTO delivery_queuegroup (id, message_id, line_id, delivery_ids, size, due_at)
  SELECT n, n, ids[1 + n %% 5], ARRAY[n], 2,
         CASE WHEN n %% 3 = 0 THEN '9999-12-30 00:00:00+00' WHEN n %% 3 = 1 THEN '9999-12-31 00:00:00+00' ELSE %s
           END::timestamptz
    FROM generate_series(1, %s) n, lines RETURNING id, line_id, due_at)
INSERT INTO delivery_open (id, message_id, line_id, subscription_id, group_id, status, size, due_at)
SELECT id, id, line_id, %s, id, CASE WHEN due_at = '9999-12-31 00:00:00+00' THEN 'HELD' ELSE 'PENDING' END, 2,
       CASE WHEN due_at >= '9999-12-30 00:00:00+00' THEN due_at END
  FROM groups
"""
"""Parked, held, and to be tried again in a year's time."""


@pytest.fixture(params=[False, True], ids=["", "vacuumed"])
def group(storage: None, request: pytest.FixtureRequest) -> list[Subscription]:
    """Three like subscriptions among the backlog of another, which is inactive."""
    wanted = factories.event_type(kind=EventKind.QUEUE)
    made = [factories.subscription(event_type=wanted, filter="$$->'Body'->'n' > '5'") for _ in range(3)]
    stuck = factories.subscription(event_type=factories.event_type(kind=EventKind.QUEUE))
    publish_bodies(stuck.event_type, b"{}")
    cancel_deliveries_of(stuck.pk, reason="only the lines are wanted")
    with connection.cursor() as cursor:
        cursor.execute(BACKLOG, ["2999-01-01", WAITING, stuck.pk])
        if request.param:
            cursor.execute("VACUUM delivery_open, delivery_queuegroup")
    inactivate(stuck)
    return made


def taken() -> int:
    return Delivery.objects.final().filter(status="DELIVERED").count()


def publish_and_cancel(group: list[Subscription]) -> None:
    publish_bodies(group[0].event_type, *[b'{"n": 6}'] * 10)
    assert [cancel_deliveries_of(one.pk, reason="unwanted") for one in group] == [(10, 0)] * 3


def publish_and_release(group: list[Subscription]) -> None:
    publish_bodies(group[0].event_type, b'{"n": 1e200000}')
    assert len(release([QueueGroup.objects.latest("id").pk])) == 3


def look_at_a_message(group: list[Subscription]) -> None:
    (published,) = publish_bodies(group[0].event_type, b'{"n": 6}')
    assert len(groups_of(Delivery.objects.filter(message=published.id))) == 1


def sweep(group: list[Subscription]) -> None:
    publish_bodies(group[0].event_type, b'{"n": 6}')
    assert len(lines_with_due_work()) == 1


@pytest.mark.behaviour("6.2", "11.4")
@pytest.mark.parametrize("act", [publish_and_cancel, publish_and_release, look_at_a_message, sweep])
def test_no_statement_reads_the_groups_that_wait(
    group: list[Subscription], monkeypatch: pytest.MonkeyPatch, act: Callable[[list[Subscription]], None]
) -> None:
    with explaining(monkeypatch) as statements:
        act(group)

    assert statements
    assert [(one.rows_read, one.statement) for one in statements if one.rows_read > FEW] == []


@pytest.mark.behaviour("6.4", "6.5", "11.4")
def test_sending_reads_no_group_but_those_that_are_sent(
    group: list[Subscription], receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    for one, behaviour in zip(group, (answer(200), answer(404), answer(500)), strict=True):
        Subscription.objects.filter(pk=one.pk).update(endpoint=receiver.url(f"/{one.pk}"))
        receiver.on(f"/{one.pk}", behaviour)
    with explaining(monkeypatch) as statements, working():
        publish_bodies(group[0].event_type, *[b'{"n": 6}'] * 12)
        wait_until(lambda: taken() == 12)

    hot = [one for one in statements if not one.statement.startswith(("SELECT", "UPDATE"))]
    assert len(hot) > 20
    assert [(one.rows_read, one.statement) for one in hot if one.rows_read > FEW] == []


def test_looking_at_the_senders_counts_no_further_than_needed(
    group: list[Subscription], monkeypatch: pytest.MonkeyPatch
) -> None:
    with explaining(monkeypatch) as statements:
        assert {one.standing.set_aside for one in senders()} == {1_000}
        assert client_of().get("/api/v1/senders").status_code == 200
        line = Line.objects.get(sender=3)
        assert client_of_admin().get(reverse("admin:delivery_line_change", args=[line.pk])).status_code == 200

    assert [(one.rows_read, one.statement) for one in statements if one.rows_read > 5 * 3 * COUNTED + FEW] == []
