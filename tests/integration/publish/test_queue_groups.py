"""What publishing a QUEUE message stores: groups of like subscriptions, each in its sender's line."""

import itertools
from collections import Counter
from typing import Any

import hypothesis.strategies as st
import pytest
from django.test import Client
from hypothesis import given

from delivery.dispatch import notify
from delivery.models import Delivery, Lane, Line, Message, QueueGroup
from delivery.publish.routing import failure_of, filter_groups
from subscriptions.matching import Match
from subscriptions.models import EventKind, EventType, Status
from tests.support import factories
from tests.support.api import EVENT, client_of, problem_of, publish, publish_batch, stored_bodies
from tests.support.broker import publish_bodies

pytestmark = pytest.mark.django_db

OPEN = "$$->'Body'->>'state' = 'open'"
BIG = "$$->'Body'->'n' > '5'"
UNREADABLE = b'{"n": 1e999999}'
"""A number that no filter can compare, and so nobody can tell whether it is big."""


@pytest.fixture
def event_type() -> EventType:
    return factories.event_type(EVENT, EventKind.QUEUE)


@pytest.fixture
def client() -> Client:
    return client_of(factories.publisher())


def grouped() -> list[list[int]]:
    """Return the subscriptions of each group, in their order."""
    subscriptions = dict(Delivery.objects.values_list("id", "subscription_id"))
    return [[subscriptions[one] for one in group.delivery_ids] for group in QueueGroup.objects.order_by("id")]


@pytest.mark.behaviour("6.1", "6.3", "2.1")
def test_a_message_goes_to_one_of_each_group_across_subscribers(client: Client, event_type: EventType) -> None:
    ours = factories.subscriber()
    wishes: list[dict[str, Any]] = [
        *({}, {"filter": OPEN}, {"header_filter_string": "eu"}, {"filter": OPEN, "header_filter_string": "eu"}),
        *({}, {"filter": f"  {OPEN} "}, {"header_filter_string": "eu"}, {"header_filter_string": "us"}),
        *({"filter": "$$->'Body'->>'state' = 'shut'"}, {"status": Status.INACTIVE}),
    ]
    made = [factories.subscription(ours if n % 3 else None, event_type, **wish).pk for n, wish in enumerate(wishes)]
    factories.subscription(ours, factories.event_type(kind=EventKind.QUEUE))

    answer = publish(client, b'{"state": "open"}', FILTER_STRING="eu")

    assert answer.json() == {"id": Message.objects.get().pk, "outcome": "ROUTED", "deliveries": 7}
    places = [sorted(made.index(one) for one in group) for group in grouped()]
    assert sorted(places) == [[0, 2, 4, 6], [1, 3, 5]]


@pytest.mark.behaviour("6.2")
def test_a_message_goes_to_the_sender_that_its_id_says(event_type: EventType) -> None:
    for _ in range(3):
        factories.subscription(event_type=event_type)

    ids = [one.id for one in publish_bodies(event_type, *[b"{}"] * 20)]

    senders = dict(Line.objects.filter(lane=Lane.QUEUE).values_list("id", "sender"))
    assert {*senders.values()} == {0, 1, 2, 3, 4}
    assert {group.message_id: senders[group.line_id or 0] for group in QueueGroup.objects.all()} == {
        message_id: message_id % 5 for message_id in ids
    }
    assert {(one.message_id, senders[one.line_id or 0]) for one in Delivery.objects.all()} == {
        (message_id, message_id % 5) for message_id in ids
    }


@pytest.mark.behaviour("6.2")
@pytest.mark.django_db(transaction=True)
def test_senders_with_work_are_woken(storage: None, event_type: EventType, monkeypatch: pytest.MonkeyPatch) -> None:
    factories.subscription(event_type=event_type)
    woken: list[tuple[str, list[int]]] = []
    monkeypatch.setattr(notify, "wake", lambda queue, lines: woken.append((queue, lines)))

    messages = publish_bodies(event_type, b"1", b"2")

    lines = {line.sender: line.pk for line in Line.objects.filter(lane=Lane.QUEUE)}
    assert woken == [(f"queue.{sender}", [lines[sender]]) for sender in sorted(one.id % 5 for one in messages)]


@pytest.mark.behaviour("2.1", "2.7")
def test_a_batch_of_both_kinds_is_stored_in_its_order(client: Client, event_type: EventType) -> None:
    topic = factories.event_type("Shop.Order.Changed")
    of_topic = [factories.subscription(event_type=topic) for _ in range(2)]
    of_queue = [factories.subscription(event_type=event_type, filter=text) for text in ("", BIG, "", BIG)]
    kinds = ["Shop.Order.Placed", "Shop.Order.Changed"] * 5

    items = ",".join(f'{{"event": "{name}", "body": {{"n": {10 + n}}}}}' for n, name in enumerate(kinds))
    answer = publish_batch(client, f'{{"events": [{items}]}}')

    ids = [result["id"] for result in answer.json()["results"]]
    assert ids == sorted(ids)
    assert stored_bodies() == [b'{"n": %d}' % n for n in range(10, 20)]
    expected = [
        (message_id, line)
        for message_id, name in zip(ids, kinds, strict=True)
        for line in ([f"queue.{message_id % 5}"] * 4 if name == event_type.name else ["topic"] * 2)
    ]
    stored = Delivery.objects.select_related("line").order_by("id")
    assert [(one.message_id, one.line.queue) for one in stored if one.line] == expected
    plain, big = [of_queue[0].pk, of_queue[2].pk], [of_queue[1].pk, of_queue[3].pk]
    assert grouped() == [plain, big] * 5
    groups = QueueGroup.objects.order_by("id")
    assert [one.message_id for one in groups] == list(itertools.chain(*([one, one] for one in ids[::2])))
    in_groups = {delivery: group.pk for group in groups for delivery in group.delivery_ids}
    assert {one.pk: one.group_id for one in stored if one.group_id} == in_groups
    assert Counter(one.subscription_id for one in stored if not one.group_id) == {one.pk: 5 for one in of_topic}


@pytest.mark.behaviour("3.6")
def test_a_group_whose_filter_failed_is_held_with_all_its_deliveries(client: Client, event_type: EventType) -> None:
    held = [factories.subscription(event_type=event_type, filter=text) for text in (BIG, f"{BIG} ")]
    sent = factories.subscription(event_type=event_type)

    publish(client, UNREADABLE)

    assert {one.subscription_id: (one.status, bool(one.reason)) for one in Delivery.objects.all()} == {
        **{one.pk: ("HELD", True) for one in held},
        sent.pk: ("PENDING", False),
    }
    groups = zip(grouped(), QueueGroup.objects.order_by("id"), strict=True)
    waits = {tuple(group): one.waits_for for group, one in groups}
    assert waits == {tuple(one.pk for one in held): "RELEASE", (sent.pk,): "TURN"}


@pytest.mark.behaviour("2.2", "2.4")
@pytest.mark.parametrize("pattern", ["Shop.*", "*"])
def test_patterns_do_not_reach_queue_messages(client: Client, event_type: EventType, pattern: str) -> None:
    factories.subscription(event_pattern=pattern)

    answer = publish(client)

    assert answer.json() == {"id": Message.objects.get().pk, "outcome": "UNROUTED", "deliveries": 0}
    assert not QueueGroup.objects.exists()


@pytest.mark.behaviour("2.5")
def test_the_payload_of_a_queue_message_is_checked_and_stored_unchanged(client: Client, event_type: EventType) -> None:
    body = b'{ "a":1, "a":2,\n "n": 1e400 }'

    assert publish(client, body).status_code == 202
    assert problem_of(publish(client, b"{")) == (400, "malformed_payload")

    assert stored_bodies() == [body]


@pytest.mark.behaviour("2.7", "7.1")
def test_sync_events_are_refused_in_batches(client: Client) -> None:
    factories.event_type(EVENT, EventKind.SYNC)

    answer = publish_batch(client, f'{{"events": [{{"event": "{EVENT}", "body": 1}}]}}')

    assert problem_of(answer) == (422, "invalid_items")
    assert answer.json()["results"][0]["code"] == "invalid_metadata"
    assert "SYNC" in answer.json()["results"][0]["detail"]
    assert stored_bodies() == []


def match(subscription_id: int, text: str = "", *, failure: str = "") -> Match:
    return Match(0, subscription_id, 1, text, failure=failure)


@pytest.mark.behaviour("6.3")
@pytest.mark.parametrize(
    ("a", "b", "alike"),
    [
        (match(1), match(2), True),
        (match(1, OPEN), match(2, OPEN), True),
        (match(1, OPEN), match(2, "  $$ -> 'Body'\n->> 'state'\t=  'open' "), True),
        (match(1, f"{OPEN} AND $$->'Body'?'n'"), match(2, f"{OPEN} and $$->'Body' ? 'n'"), True),
        (match(1, OPEN), match(2, OPEN.replace("open", "OPEN")), False),
        (match(1, OPEN), match(2, OPEN.replace("open", "open ")), False),
        (match(1, OPEN), match(2), False),
        (match(1, "no filter", failure="filter failed"), match(2, "no filter", failure="filter failed"), True),
        (match(1, "no filter", failure="filter failed"), match(2, "none either", failure="filter failed"), False),
    ],
)
def test_subscriptions_with_the_same_filter_form_a_group(a: Match, b: Match, alike: bool) -> None:
    assert filter_groups([a, b]) == ([[a, b]] if alike else [[a], [b]])


@pytest.mark.behaviour("6.3")
@given(st.lists(st.sampled_from(["", OPEN, f" {OPEN}", f"NOT {OPEN}"])))
def test_every_subscription_is_in_exactly_one_group_and_groups_keep_the_order(filters: list[str]) -> None:
    qualified = [match(number, text) for number, text in enumerate(filters)]

    groups = filter_groups(qualified)

    assert sorted((one for group in groups for one in group), key=qualified.index) == qualified
    assert len({one.filter.strip() for one in qualified}) == len(groups)
    assert [group[0] for group in groups] == sorted((group[0] for group in groups), key=qualified.index)
    assert all(group == sorted(group, key=qualified.index) for group in groups)


@pytest.mark.behaviour("3.6")
@pytest.mark.parametrize(
    ("failures", "failure"),
    [
        ([""], ""),
        (["no number"], "no number"),
        (["no number", "too much work"], "no number"),
        (["too much work", ""], ""),
    ],
)
def test_a_group_is_held_if_none_of_its_filters_could_be_evaluated(failures: list[str], failure: str) -> None:
    assert failure_of([match(1, OPEN, failure=one) for one in failures]) == failure
