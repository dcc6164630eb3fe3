"""Ten thousand filtered subscriptions: what looking for those that want a message reads (contract 2.2)."""

from collections.abc import Iterator

import pytest
from django.db import connection

from broker_project.core.db import forget_connection
from delivery.publish import routing
from delivery.publish.publish import publish, publish_terms
from delivery.publish.store import NewMessage
from subscriptions import matching
from subscriptions.models import EventType, Subscriber, Subscription
from tests.support import factories
from tests.support.database import execute, forget_filters
from tests.support.query_plans import ExplainedStatement, explained_statements, prepared_statements

MANY = 10_000
CONFIGURED = {"subscriptions_subscription", "subscriptions_subscriber"}


@pytest.fixture
def event_type(storage: None) -> EventType:
    forget_filters()
    return factories.event_type("Big.Event")


@pytest.fixture
def many_subscribed(event_type: EventType) -> None:
    """Let as many subscribe: half of them by header filter, half by an equality in their filter."""
    people = Subscriber.objects.bulk_create(Subscriber(name=f"many-{number}") for number in range(MANY // 100))
    Subscription.objects.bulk_create(
        Subscription(
            subscriber=people[number % len(people)],
            event_type=event_type,
            endpoint="http://127.0.0.1:9/",
            **({"header_filter_string": f"{number}"} if number % 2 else {"filter": f"$$->'Body'->>'id' = '{number}'"}),
        )
        for number in range(MANY)
    )
    execute("ANALYZE subscriptions_subscription, subscriptions_subscriber")


def published(event_type: EventType, number: int, filter_string: str, destination: str | None = None) -> int:
    """Publish a message; return how many deliveries it became."""
    body = b'{"id": %d}' % number
    message = NewMessage(
        event_type_id=event_type.pk,
        event_type=event_type.name,
        body=body,
        content_type="application/json",
        filter_string=filter_string,
        destination=destination,
    )
    return publish([message], publish_terms())[0].deliveries


def searched(plan: ExplainedStatement) -> Iterator[str]:
    """Yield the configured tables that are read from one end on."""
    yield from (node["Relation Name"] for node in plan.nodes() if node["Node Type"] == "Seq Scan")


@pytest.mark.lengthy
@pytest.mark.behaviour("2.2")
def test_of_ten_thousand_subscriptions_a_publish_reads_those_that_may_match(
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
def test_of_ten_thousand_subscriptions_a_direct_message_reads_its_destinations(
    event_type: EventType, many_subscribed: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    with explained_statements(monkeypatch) as statements:
        sent = [published(event_type, 4, "7", name) for name in ("many-4", "many-7", "many-8", "nobody")]
    assert sent == [1, 1, 0, 0]
    assert [name for one in statements for name in searched(one) if name in CONFIGURED] == []
    looked = [one for one in statements if one.statement == routing.CANDIDATES]
    assert [one.plan["Plan"]["Actual Rows"] for one in looked] == [MANY // 100, 1, MANY // 100, 0]
    assert max(one.blocks_read for one in looked) < 300


@pytest.fixture
def analyzed_when_asked(storage: None) -> Iterator[None]:
    """Keep the planner's statistics as the test leaves them: no autovacuum because of earlier tests."""
    alter_configured("SET (autovacuum_enabled = false)")
    yield
    alter_configured("RESET (autovacuum_enabled)")


def alter_configured(change: str) -> None:
    for name in sorted(CONFIGURED):
        execute(f"ALTER TABLE {name} {change}")


def leave_room(event_type: EventType) -> None:
    """Let the tables be as they are after the migrations; the tests before this one may have truncated them."""
    text = "-" * 1500
    people = Subscriber.objects.bulk_create(Subscriber(name=f"n{number}", description=text) for number in range(1000))
    Subscription.objects.bulk_create(
        Subscription(subscriber=one, event_type=event_type, endpoint=f"http://127.0.0.1:9/{text}") for one in people
    )
    execute("ANALYZE subscriptions_subscription, subscriptions_subscriber")
    execute("DELETE FROM subscriptions_subscription")
    execute("DELETE FROM delivery_line")
    execute("DELETE FROM subscriptions_subscriber")
    execute("VACUUM subscriptions_subscription, subscriptions_subscriber")


@pytest.mark.behaviour("2.2")
def test_no_plan_for_few_subscriptions_searches_many(event_type: EventType, analyzed_when_asked: None) -> None:
    leave_room(event_type)
    few = [factories.subscription(event_type=event_type, filter="$$->'Body'->>'id' = '1'") for _ in range(3)]
    forget_connection()
    assert published(event_type, 1, "x") == len(few)
    assert published(event_type, 1, "x", few[0].subscriber.name) == 1
    kinds = ("COALESCE(s.event_type_id", "WHERE name = a.destination")
    made = [one for one in prepared_statements() if any(kind in one.statement for kind in kinds)]
    assert all(any(kind in one.statement for one in made) for kind in kinds)
    for number, one in enumerate(made, 1):
        one.prepare(connection.connection, number)
        assert CONFIGURED & {*searched(one.kept_plan(connection.connection, number))} == set()
