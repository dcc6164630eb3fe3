"""What becomes due by the clock alone is found by it, however much waits for its time or for something else."""

import datetime as dt

import pytest
from django.db import connection
from django.db.models.functions import Now

from broker_project.core.db import forget_connection
from delivery.dispatch.sweep import begin_delayed
from delivery.maintenance.expiry import expire_overdue
from delivery.models import Delivery
from subscriptions.models import PausedBy, Subscription
from tests import factories
from tests.driving import line_of, probe, publish_bodies, statuses
from tests.plans import explaining, too_much

WAITING = 20_000
WAIT = """
INSERT INTO delivery_open (message_id, line_id, subscription_id, status, size, due_at, not_before, expires_at)
SELECT n, %s, %s, 'PENDING', 2, CASE n %% 2 WHEN 0 THEN '9999-12-29 00:00:00+00'::timestamptz END,
       CASE n %% 2 WHEN 0 THEN now() + interval '1 day' END, CASE WHEN n %% 4 < 2 THEN now() + interval '1 day' END
  FROM generate_series(1, %s) n
"""
"""Every other one is delayed, and of either kind every other one will expire."""
SUSPENDED = """
INSERT INTO subscriptions_subscription (subscriber_id, event_pattern, endpoint, headers, signing_secret, paused_since,
                                        header_filter_string, filter, filter_term, script, position, status,
                                        paused_by, probe_due_at)
SELECT %s, 'n' || n || '.*', 'http://127.0.0.1/', '', '', now(), '', '', '', '', 0,
       CASE n %% 2 WHEN 0 THEN 'ACTIVE' ELSE 'INACTIVE' END, 'POLICY',
       now() + CASE n %% 2 WHEN 0 THEN interval '1 day' ELSE interval '-1 day' END
  FROM generate_series(1, %s) n
"""
"""What is not active is overdue."""
HOUR = 3_600.0


@pytest.fixture
def wanting(storage: None) -> Subscription:
    return factories.subscription()


def let_many_wait() -> None:
    other = factories.subscription()
    with connection.cursor() as cursor:
        cursor.execute(WAIT, [line_of(other.subscriber).pk, other.pk, WAITING])
        # What a vacuum makes of it: where the planner takes to bitmaps and sorts.
        cursor.execute("VACUUM delivery_open")


@pytest.mark.behaviour("5.6")
def test_only_what_is_to_be_probed_now_is_looked_at(wanting: Subscription, monkeypatch: pytest.MonkeyPatch) -> None:
    publish_bodies(wanting.event_type, b"0")
    with connection.cursor() as cursor:
        cursor.execute(SUSPENDED, [factories.subscriber().pk, WAITING])
        cursor.execute("VACUUM subscriptions_subscription")
    ours = Subscription.objects.filter(pk=wanting.pk)
    ours.update(paused_since=Now(), paused_by=PausedBy.POLICY, probe_due_at=Now())
    forget_connection()  # and what it has planned for few

    with explaining(monkeypatch) as statements:
        assert probe() == 1

    assert ours.get().half_open
    looks = [node for one in statements for node in one.nodes() if node.get("Index Name") == "subscription_probes"]
    assert [node["Shared Hit Blocks"] + node["Shared Read Blocks"] < 20 for node in looks] == [True]


@pytest.mark.behaviour("2.10", "2.13", "11.4")
def test_only_what_is_due_is_looked_at(wanting: Subscription, monkeypatch: pytest.MonkeyPatch) -> None:
    publish_bodies(wanting.event_type, b"0", ttl=HOUR)
    publish_bodies(wanting.event_type, b"1", not_before=dt.datetime(2100, 1, 1, tzinfo=dt.UTC))
    let_many_wait()
    past = Now() - dt.timedelta(milliseconds=1)
    ours = Delivery.objects.filter(subscription=wanting)
    ours.filter(expires_at__isnull=False).update(expires_at=past)
    ours.filter(not_before__isnull=False).update(not_before=past)

    with explaining(monkeypatch) as statements:
        assert (expire_overdue(), begin_delayed()) == (1, 1)

    assert statuses(wanting) == ["EXPIRED", "PENDING"]
    assert too_much(statements, most_rows=100, most_in_vain=10) == []
    assert max(one.blocks_read for one in statements) < 1_000
