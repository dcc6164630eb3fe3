"""A hundred thousand filtered subscriptions: what looking for those that want a message reads (contract 2.2)."""

import re
from collections.abc import Iterator
from typing import LiteralString

import pytest

from broker_project.core.db import forget_connection
from delivery.publish import routing
from subscriptions import matching
from subscriptions.models import EventType, Subscriber, Subscription
from tests.support import factories
from tests.support.broker import publish_bodies
from tests.support.database import another_connection, execute, forget_filters
from tests.support.query_plans import ExplainedStatement, explained_statements, prepared_statements

MANY = 100_000
EACH = 100
"""Of one subscriber."""
CONFIGURED = {"subscriptions_subscription", "subscriptions_subscriber"}


@pytest.fixture
def event_type(storage: None) -> EventType:
    forget_filters()
    return factories.event_type("Big.Event")


@pytest.fixture
def many_subscribed(event_type: EventType) -> None:
    """Let as many subscribe: half of them by header filter, half by an equality in their filter."""
    people = Subscriber.objects.bulk_create(Subscriber(name=f"many-{number}") for number in range(MANY // EACH))
    subscriptions = (
        Subscription(
            subscriber=people[number % len(people)],
            event_type=event_type,
            endpoint="http://127.0.0.1:9/",
            **({"header_filter_string": f"{number}"} if number % 2 else {"filter": f"$$->'Body'->>'id' = '{number}'"}),
        )
        for number in range(MANY)
    )
    Subscription.objects.bulk_create(subscriptions, batch_size=1_000)
    execute("ANALYZE subscriptions_subscription, subscriptions_subscriber")


def published(event_type: EventType, number: int, filter_string: str, destination: str | None = None) -> int:
    """Publish a message; return how many deliveries it became."""
    fields = {"filter_string": filter_string, "destination": destination}
    return publish_bodies(event_type, b'{"id": %d}' % number, **fields)[0].deliveries


def searched(plan: ExplainedStatement) -> Iterator[str]:
    """Yield the configured tables that are read from one end on."""
    yield from (node["Relation Name"] for node in plan.nodes() if node["Node Type"] == "Seq Scan")


@pytest.mark.lengthy
@pytest.mark.behaviour("2.2")
def test_of_a_hundred_thousand_subscriptions_a_publish_reads_those_that_may_match(
    event_type: EventType, many_subscribed: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert published(event_type, 4, "7") == 2
    with explained_statements(monkeypatch) as statements:
        assert (published(event_type, 4, "7"), published(event_type, 10**9, "")) == (2, 0)
    assert [name for one in statements for name in searched(one) if name in CONFIGURED] == []
    looked = [one for one in statements if one.statement == matching.CANDIDATES]
    assert [one.plan["Plan"]["Actual Rows"] for one in looked] == [2, 0]
    assert max(one.blocks_read for one in looked) < 100


@pytest.mark.lengthy
@pytest.mark.behaviour("2.8")
def test_of_a_hundred_thousand_subscriptions_a_direct_message_reads_its_destinations(
    event_type: EventType, many_subscribed: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    with explained_statements(monkeypatch) as statements:
        sent = [published(event_type, 4, "7", name) for name in ("many-4", "many-7", "many-8", "nobody")]
    assert sent == [1, 1, 0, 0]
    assert [name for one in statements for name in searched(one) if name in CONFIGURED] == []
    looked = [one for one in statements if one.statement == routing.CANDIDATES]
    assert [one.plan["Plan"]["Actual Rows"] for one in looked] == [EACH, 1, EACH, 0]
    assert max(one.blocks_read for one in looked) < 300


FILL: LiteralString = """
INSERT INTO subscriptions_subscriber (id, name, description, status, headers, max_queued_to_send)
  SELECT -n, 'n' || n, '', 'ACTIVE', '', 500 FROM generate_series({0}) n;
INSERT INTO subscriptions_subscription (id, subscriber_id, event_pattern, endpoint, headers, header_filter_string,
                                        filter, filter_term, script, signing_secret, position, status)
  SELECT -n, -n, 'n' || n || '.*', 'http://127.0.0.1/', '', '', '', '', '', '', 0, 'ACTIVE'
    FROM generate_series({0}) n"""
TABLES = "subscriptions_subscription, subscriptions_subscriber"
EMPTY = "DELETE FROM delivery_line; DELETE FROM subscriptions_subscription; DELETE FROM subscriptions_subscriber"
STATES: dict[str, list[LiteralString]] = {
    "never filled": [f"TRUNCATE {TABLES} CASCADE"],
    "never filled, and analyzed": [f"ANALYZE {TABLES}"],
    "a handful, analyzed": [FILL.format("1, 3"), f"ANALYZE {TABLES}"],
    "many since": [FILL.format("4, 10000")],
    "many, analyzed": [f"VACUUM ANALYZE {TABLES}"],
    "emptied": [EMPTY, f"VACUUM {TABLES}"],
    "emptied, and analyzed": [f"ANALYZE {TABLES}"],
}
"""What is configured when statements are planned: one moment after the other."""
LOOKED_UP_BY = {
    "COALESCE(event_type_id, 0) =": {"COALESCE", "id"},
    "WHERE name = a.subscriber": {"name", "id", "subscriber_id"},
}
"""By a part of each statement, with what the conditions begin under which it reads indexes."""


@pytest.mark.behaviour("2.2", "2.8")
def test_no_plan_depends_on_what_is_configured_when_it_is_made(event_type: EventType) -> None:
    wanted = factories.subscription(event_type=event_type, filter="$$->'Body'->>'id' = '1'")
    forget_connection()
    assert [published(event_type, 1, "x"), published(event_type, 1, "x", wanted.subscriber.name)] == [1, 1]
    made = {part: one for one in prepared_statements() for part in LOOKED_UP_BY if part in one.statement}
    assert made.keys() == LOOKED_UP_BY.keys()
    for state, steps in STATES.items():
        with another_connection() as raw:
            for step in (part for one in steps for part in one.split(";")):
                raw.execute(step.encode(), prepare=False)
            for number, (part, one) in enumerate(made.items()):
                plan = one.prepare(raw, number)
                scans = [node for node in plan.nodes() if node.get("Relation Name") in CONFIGURED]
                names = [re.search(r"\w+", scan.get("Index Cond", "none")) for scan in scans]
                assert {name and name.group() for name in names} == LOOKED_UP_BY[part], (state, scans)
