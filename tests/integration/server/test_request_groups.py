"""Requests that publish one event and are answered in groups get the same answers as alone."""

import asyncio
import threading
from collections.abc import Collection, Sequence
from typing import Any

import pytest
from django.db import OperationalError
from django.utils import timezone
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from broker_project.core import db
from broker_project.core.db import ANSWER_SECONDS
from broker_project.server import request_groups
from broker_project.server.request_groups import RequestGroups
from broker_project.stack.load.wait import wait_until
from broker_project.wsgi import application
from delivery.api import publish as publish_api
from delivery.api.grouped_view import DeferredAnswer, resolve_all
from delivery.models import Delivery, IdempotencyKey, Message
from delivery.publish import check
from delivery.publish import publish as publishing
from delivery.publish.publish import Publication, PublishTerms, publish_together
from subscriptions.credentials.keys import revoke
from subscriptions.filters import document
from subscriptions.models import ApiKey, EventKind, EventType, Publisher
from subscriptions.publishable import Named, Publishable
from tests.support import factories
from tests.support.api import EVENT
from tests.support.database import another_connection, do_and_disconnect, empty_database, execute, lock_waiters
from tests.support.request_groups import Call, answer_group, run
from tests.support.spies import spied

pytestmark = pytest.mark.django_db(transaction=True)

ADDRESS = f"events/{EVENT}"
END_WAITING = """
SELECT pg_terminate_backend(pid) FROM pg_stat_activity
 WHERE datname = current_database() AND wait_event_type = 'Lock' AND pid <> pg_backend_pid()
"""


def token_of(publisher: Publisher) -> str:
    return factories.api_key(publisher)[1]


KEYS: list[dict[str, Any]] = [{}, {"requests_per_minute": 1}, {}]
SCHEMA = {"type": "object", "required": ["n"], "properties": {"n": {"type": "integer"}}}
EVENTS = (
    "Plain",
    "Topic",
    "Queue",
    "Sync",
    "Schema",
    "Text",
    "Forbidden",
    "Unknown",
    "Broker.Line.Paused",
    "no name at all",
)
BODIES = (b"{}", b'{"n": 1}', b'{"n": "x"}', b"", b"{", b'{"n": 1, "n": 2}', b'"\xff"', b"x" * 2_000_000)
HEADERS: dict[str, tuple[str, ...]] = {
    "Content-Type": ("text/plain", "application/cloudevents+json", "application/json; charset=none"),
    "Content-Encoding": ("gzip", "identity"),
    "Authorization": ("Bearer brk_" + "x" * 43, "Basic eDp5", "Bearer"),
    "Host": ("other.example.org", "testserver"),
    "FILTER_STRING": ("eu", "us", "\t", "ü"),
    "Idempotency-Key": ("known", "with blank", "x" * 256),
    "CallbackURL": ("https://127.0.0.1/answer", "nowhere", "https://a:b@127.0.0.1/"),
    "Broker-Destination": ("blue", "default", "nobody", "no name at all"),
    "Broker-TTL": ("1h", "0", "forever"),
    "Broker-Not-Before": ("2020-01-01T00:00:00Z", "tomorrow"),
    "Broker-Durability": ("guaranteed", "eternal"),
    "Ce-Specversion": ("1.0", "0.3"),
    "Ce-Id": ("1",),
    "Ce-Source": ("/test",),
    "Ce-Type": ("Topic", "Queue"),
    "X-Forwarded-Host": ("a",),
    "traceparent": ("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",),
}


@st.composite
def requests(draw: st.DrawFn, events: Sequence[str] = EVENTS) -> tuple[str, bytes, dict[str, str]]:
    names = draw(st.lists(st.sampled_from(sorted(HEADERS)), max_size=4, unique=True))
    headers = {name: draw(st.sampled_from(HEADERS[name])) for name in names}
    return draw(st.sampled_from(events)), draw(st.sampled_from(BODIES)), headers


def two_publishers() -> tuple[Publisher, Publisher]:
    """Return two publishers that may publish the same event types, of which all have subscriptions."""
    types = [
        factories.event_type("Plain"),
        factories.event_type("Topic"),
        factories.event_type("Queue", kind=EventKind.QUEUE),
        factories.event_type("Sync", kind=EventKind.SYNC),
        factories.event_type("Schema", schema=SCHEMA),
        factories.event_type("Text", content_type="text/plain"),
    ]
    factories.event_type("Forbidden")
    blue = factories.subscriber("blue")
    for one in types:
        if one.kind == EventKind.SYNC:
            continue
        factories.subscription(blue, one)
        if one.name == "Plain":
            continue
        factories.subscription(event_type=one, header_filter_string="eu")
        factories.subscription(event_type=one, filter="$$->'Body'->'n' = '1'")
    return factories.publisher(event_types=types), factories.publisher(event_types=types)


def stored_by(publisher: Publisher) -> list[Any]:
    """Return what is stored of a publisher, without what differs from message to message."""
    columns = "event_type_id", "body", "content_type", "headers", "filter_string", "destination", "outcome"
    messages = sorted(
        Message.objects.filter(publisher=publisher).select_related("event_type").order_by("id"),
        key=lambda one: one.event_type is not None and one.event_type.kind == EventKind.SYNC,  # a group answers it last
    )
    keys = IdempotencyKey.objects.filter(publisher=publisher).order_by("key")
    return [
        (
            [getattr(one, name) for name in columns],
            [*Delivery.objects.filter(message=one).order_by("id").values_list("subscription_id", "status", "reason")],
        )
        for one in messages
    ] + [*keys.values_list("key", "outcome", "deliveries_count")]


def comparable(call: Call) -> tuple[int, dict[str, str], bytes]:
    """Return an answer without the ids of messages."""
    headers = {name: value for name, value in call.headers.items() if name not in {"location", "broker-message-id"}}
    body = call.body
    if call.status == 202:
        assert call.headers["location"].startswith("/api/v1/messages/")
        assert call.headers["location"].rpartition("/")[2].encode() in body
        body = body.partition(b",")[2]
    return call.status, headers, body


@pytest.mark.behaviour("2.1", "2.7")
@given(
    sent=st.lists(requests(), min_size=1, max_size=12) | st.lists(requests(["Plain"]), min_size=1, max_size=4),
    earlier=st.integers(0, 2),
)
@hypothesis_settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_a_group_is_answered_and_stored_as_each_request_alone(
    sent: list[tuple[str, bytes, dict[str, str]]], earlier: int
) -> None:
    empty_database()
    together, alone = two_publishers()
    tokens = [token_of(publisher) for publisher in (together, alone)]
    for token in tokens * earlier:  # after the second one, key and event type are remembered
        answer_group([Call(token, "events/Plain", b"{}")])
    # Of two requests of a group with the same key, the second may be told that the first is still running.
    keys = [headers.get("Idempotency-Key") for _, _, headers in sent]
    for number, (_, _, headers) in enumerate(sent):
        if keys[number] in keys[:number]:
            headers.pop("Idempotency-Key", None)
    group, each = ([Call(token, f"events/{event}", body, headers) for event, body, headers in sent] for token in tokens)
    answer_group(group)
    for call in each:
        call.send_alone()
    assert [comparable(call) for call in group] == [comparable(call) for call in each]
    assert stored_by(together) == stored_by(alone)


async def in_one_group(groups: RequestGroups, calls: Sequence[Call]) -> None:
    groups._running = request_groups.MAX_GROUPS  # until all have come
    futures = [groups.answered(call) for call in calls]
    groups._running = 0
    groups._begin()
    await asyncio.gather(*futures)


@pytest.fixture
def calls(event_type: Any) -> list[Call]:
    factories.subscription(event_type=event_type)
    token = token_of(factories.publisher())
    return [Call(token, ADDRESS, b'{"n": %d}' % number) for number in range(10)]


def test_the_event_types_of_a_group_are_read_with_its_keys(calls: list[Call], monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Named] = []

    def publishable(missing: Collection[Named]) -> dict[Named, Publishable]:
        asked.extend(missing)
        return {}

    monkeypatch.setattr(check, "publishable", publishable)
    answer_group(calls)
    assert {call.status for call in calls} == {202}
    assert asked == []


@pytest.fixture
def sizes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Of the groups that are answered, none of which is slow."""
    monkeypatch.setattr(request_groups, "SLOW_SECONDS", 60.0)
    return spied(monkeypatch, request_groups, "resolve_all", len)


def test_requests_gather_while_a_group_is_answered(calls: list[Call], sizes: list[int]) -> None:
    async def send(groups: RequestGroups) -> None:
        await asyncio.gather(*(groups.answered(call) for call in calls))

    run(send)
    assert sizes == [1, 9]
    assert {call.status for call in calls} == {202}
    assert Message.objects.count() == Delivery.objects.count() == 10


def test_those_who_were_answered_together_and_ask_again_are_waited_for(
    calls: list[Call], sizes: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request_groups, "GATHER_SECONDS", 60.0)

    async def ask_twice(groups: RequestGroups, first: Call, second: Call, pause: float) -> None:
        await groups.answered(first)
        await asyncio.sleep(pause)  # as publishers do that are not equally fast
        if second is calls[8]:  # the last one
            monkeypatch.setattr(request_groups, "GATHER_SECONDS", 0.01)
        await groups.answered(second)

    async def send(groups: RequestGroups) -> None:
        pairs = zip(calls[1:5], calls[5:9], strict=True)
        twice = [ask_twice(groups, *pair, number / 100) for number, pair in enumerate(pairs)]
        await asyncio.gather(groups.answered(calls[0]), *twice)
        await groups.answered(calls[9])  # the others do not ask again

    run(send)
    assert sizes == [1, 4, 4, 1]
    assert {call.status for call in calls} == {202}


def test_of_two_requests_with_one_key_the_second_is_told_that_the_first_is_running_if_several_statements_publish(
    event_type: Any,
) -> None:
    token = token_of(factories.publisher())
    calls = [Call(token, ADDRESS, b"{}", {"Idempotency-Key": "k"}) for _ in range(2)]
    answer_group(calls)
    assert [call.status for call in calls] == [202, 409]
    assert b"publish_in_progress" in calls[1].body
    again = Call(token, ADDRESS, b"{}", {"Idempotency-Key": "k"})
    answer_group([again])
    assert (again.status, again.headers["idempotency-replayed"]) == (202, "true")
    assert Message.objects.count() == 1


def test_of_two_requests_with_one_key_the_second_gets_the_first_answer_if_one_statement_publishes(
    event_type: Any,
) -> None:
    factories.subscription(event_type=event_type)
    token = token_of(factories.publisher())
    for _ in range(2):
        answer_group([Call(token, ADDRESS, b"{}")])
    calls = [Call(token, ADDRESS, body, {"Idempotency-Key": "k"}) for body in (b"{}", b"{}", b"[]")]
    answer_group(calls)
    assert [call.status for call in calls] == [202, 202, 422]
    assert [call.headers.get("idempotency-replayed") for call in calls[:2]] == [None, "true"]
    assert calls[0].headers["location"] == calls[1].headers["location"]
    assert Message.objects.count() == 3


def test_each_key_of_a_group_counts_by_itself(event_type: Any) -> None:
    revoked, limited, other = [factories.api_key(factories.publisher(), **terms) for terms in KEYS]
    revoke(ApiKey.objects.filter(pk=revoked[0].pk), now=timezone.now())
    calls = [Call(token, ADDRESS, b"{}") for _, token in (revoked, limited, limited, other)]
    answer_group(calls)
    assert [call.status for call in calls] == [401, 202, 429, 202]
    assert calls[1].headers["ratelimit-policy"] == calls[2].headers["ratelimit-policy"] == '"default";q=1;w=60'
    assert "ratelimit-policy" not in calls[3].headers


def test_the_open_messages_of_a_group_are_counted_together(event_type: Any) -> None:
    factories.subscription(event_type=event_type)
    token = token_of(factories.publisher(max_open_messages=2))
    calls = [Call(token, ADDRESS, b"{}") for _ in range(3)]
    answer_group(calls)
    assert [call.status for call in calls] == [202, 202, 429]


def test_a_group_without_tls_is_redirected(calls: list[Call], settings: Any) -> None:
    settings.SECURE_SSL_REDIRECT = True
    application.load_middleware()
    try:
        answer_group(calls)
    finally:
        settings.SECURE_SSL_REDIRECT = False
        application.load_middleware()
    assert {call.status for call in calls} == {301}
    assert not Message.objects.exists()


def test_an_answer_that_cannot_be_sent_costs_no_other(calls: list[Call], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls[0], "send", None)
    answer_group(calls)
    assert [call.status for call in calls] == [0] + [202] * 9


@pytest.mark.behaviour("2.1")
def test_a_request_that_cannot_be_read_costs_no_other(calls: list[Call]) -> None:
    calls[3].environ["CONTENT_TYPE"] = "application/json; x*=foo''a"
    answer_group(calls)
    assert [call.status for call in calls] == [202] * 3 + [0] + [202] * 6


@pytest.mark.behaviour("11.5")
def test_a_statement_of_an_answer_that_takes_long_is_given_up_soon_too(
    event_type: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    factories.event_type("Sync", kind=EventKind.SYNC)
    allowed: list[float] = []
    monkeypatch.setattr(request_groups, "_send", lambda *_: allowed.append(db._waits.seconds))
    call = Call(token_of(factories.publisher()), "events/Sync", b"{}")

    async def send(groups: RequestGroups) -> None:
        await groups.answered(call)

    run(send)
    assert allowed == [request_groups.STATEMENT_SECONDS]


def test_what_takes_long_holds_up_nobody_of_its_group(calls: list[Call], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publishing, "MAX_GROUP_DELIVERIES", 2)
    may_go_on = threading.Event()

    def publish_slowly(asked: Sequence[Publication], terms: PublishTerms) -> Any:
        if len(asked) == 1:
            may_go_on.wait()
        return publish_together(asked, terms)

    monkeypatch.setattr(publish_api, "publish_together", publish_slowly)

    async def send(groups: RequestGroups) -> None:
        in_group = asyncio.ensure_future(in_one_group(groups, calls[:4]))
        while {call.status for call in calls[:2]} != {202}:
            await asyncio.sleep(0.001)
        assert not in_group.done()
        may_go_on.set()
        await in_group

    run(send)
    assert [call.status for call in calls[:4]] == [202] * 4
    assert Message.objects.count() == Delivery.objects.count() == 4


@pytest.mark.behaviour("11.5")
def test_of_what_takes_long_only_the_first_waits_for_a_database_that_is_away(
    calls: list[Call], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    monkeypatch.setattr(publishing, "MAX_GROUP_DELIVERIES", 2)

    def publish_counted(publications: Sequence[Publication], terms: PublishTerms) -> Any:
        asked.append(len(publications))
        if len(publications) == 1:
            return [OperationalError("the database did not answer in time")]
        return publish_together(publications, terms)

    monkeypatch.setattr(publish_api, "publish_together", publish_counted)
    run(lambda groups: in_one_group(groups, calls))
    assert [call.status for call in calls] == [202] * 2 + [503] * 8
    assert asked == [10, 1]


@pytest.mark.behaviour("2.1", "3.6")
def test_filters_that_have_much_to_do_are_evaluated_after_the_group(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(document, "MAX_WORK", 10_000)
    event_type = factories.event_type(EVENT)
    factories.subscription(event_type=event_type, filter="$$->'Body'->'a' = '[]'")
    token = token_of(factories.publisher())
    bodies = [b'{"a": [%s]}' % (b" " * spaces) for spaces in (1, 6_000, 6_000, 20_000, 1)]
    calls = [Call(token, ADDRESS, body) for body in bodies]
    stored = spied(monkeypatch, publishing, "store", lambda messages, *_, **__: len(messages))
    answer_group(calls)
    assert [call.status for call in calls] == [202] * 5
    assert stored == [2, 1, 1, 1]
    status = {bytes(one.message.body): one.status for one in Delivery.objects.select_related("message") if one.message}
    assert [status[body] for body in bodies] == ["PENDING"] * 3 + ["HELD", "PENDING"]


@pytest.mark.behaviour("11.5")
def test_a_large_event_may_take_as_long_as_a_batch(calls: list[Call], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publishing, "MAX_GROUP_DELIVERIES", 1)
    allowed = spied(monkeypatch, publishing, "store", lambda *_, **__: db._waits.seconds)
    with db.answered_within(4.5):
        answer_group(calls[:1])
        factories.subscription(event_type=EventType.objects.get(name=EVENT))
        answer_group(calls[1:2])
        answer_group(calls[2:4])
    assert {call.status for call in calls[:4]} == {202}
    assert allowed == [4.5, ANSWER_SECONDS, 4.5, ANSWER_SECONDS, ANSWER_SECONDS]


def test_a_slow_group_holds_up_nobody(calls: list[Call], monkeypatch: pytest.MonkeyPatch) -> None:
    may_go_on = threading.Event()

    def slow_for_the_first(answers: Sequence[DeferredAnswer[Any, Any]]) -> None:
        if any(one.asked.submission.drafts[0].body == b'{"n": 0}' for one in answers):
            may_go_on.wait()
        resolve_all(answers)

    monkeypatch.setattr(request_groups, "resolve_all", slow_for_the_first)

    async def send(groups: RequestGroups) -> None:
        slow, *others = [groups.answered(call) for call in calls[:5]]
        await asyncio.gather(*others)
        monkeypatch.setattr(request_groups, "SLOW_SECONDS", 60.0)
        for call in calls[5:]:  # each in a group of its own, since the youngest has ended
            await groups.answered(call)
        assert not slow.done()
        may_go_on.set()
        await slow

    run(send)
    assert {call.status for call in calls} == {202}


def test_what_the_database_refuses_costs_only_its_own_request(calls: list[Call]) -> None:
    execute("ALTER TABLE delivery_message ADD CONSTRAINT no CHECK (body <> '{\"n\": 4}')")
    try:
        answer_group(calls)
    finally:
        execute("ALTER TABLE delivery_message DROP CONSTRAINT no")
    assert [call.status for call in calls] == [202] * 4 + [409] + [202] * 5
    assert Message.objects.count() == Delivery.objects.count() == 9


@pytest.mark.behaviour("11.5")
@pytest.mark.parametrize("table", ["subscriptions_apikey", "delivery_message"])
def test_what_waits_for_a_database_that_hangs_is_refused_with_the_first_group(
    calls: list[Call], monkeypatch: pytest.MonkeyPatch, table: str
) -> None:
    monkeypatch.setattr(request_groups, "STATEMENT_SECONDS", 1.0)
    monkeypatch.setattr(request_groups, "SLOW_SECONDS", 60.0)
    asked = spied(monkeypatch, request_groups, "find_keys", lambda requests, **_: len(requests))

    async def send(groups: RequestGroups) -> None:
        await asyncio.gather(*(groups.answered(call) for call in calls))

    with another_connection() as elsewhere:
        elsewhere.execute(f"BEGIN; LOCK TABLE {table}")
        run(send)
        elsewhere.rollback()
    assert asked == [1]
    assert {call.status for call in calls} == {503}
    assert not Message.objects.exists()


def test_a_lost_connection_fails_the_whole_group_and_nothing_is_stored(calls: list[Call]) -> None:
    with another_connection() as elsewhere:
        elsewhere.execute("BEGIN; LOCK TABLE delivery_message")
        thread = threading.Thread(target=do_and_disconnect, args=[lambda: answer_group(calls)])
        thread.start()
        wait_until(lambda: lock_waiters() > 0)
        execute(END_WAITING)
        thread.join()
        elsewhere.rollback()
    assert {call.status for call in calls} == {503}
    assert {call.headers["retry-after"] for call in calls} == {"1"}
    assert not Message.objects.exists()


@pytest.mark.behaviour("11.5")
@pytest.mark.parametrize(
    ("path", "content_type", "headers", "is_short"),
    [
        ("/api/v1/events/Order.Paid", "application/json", {}, True),
        ("/api/v1/events", "application/json", {}, False),
        ("/api/v1/events", "application/cloudevents+json", {}, True),
        ("/api/v1/events", "application/cloudevents-batch+json", {}, False),
        ("/api/v1/events", "application/json", {"HTTP_CE_SPECVERSION": "1.0"}, True),
        ("/api/v1/events/", "application/json", {}, False),
        ("/api/v1/events/Order.Paid/dry-run", "application/json", {}, False),
        ("/api/v1/messages", "application/cloudevents+json", {}, False),
    ],
)
def test_only_statements_of_one_event_are_given_up_soon(
    path: str, content_type: str, headers: dict[str, str], is_short: bool
) -> None:
    environ = {"PATH_INFO": path, "CONTENT_TYPE": content_type, **headers}
    assert (request_groups.statement_seconds(environ) < ANSWER_SECONDS) == is_short
