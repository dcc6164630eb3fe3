"""Search for messages and deliveries by what no index knows: time, headers, body, publisher, key."""

import datetime as dt
from typing import Any, LiteralString

import pytest
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from broker_project.core.admin import lists
from broker_project.core.api import pagination
from delivery.maintenance import partitions
from delivery.models import Delivery, Message
from delivery.status import message_search
from subscriptions.models import EventType, Publisher, Subscriber
from tests.support import factories
from tests.support.admin import browser_with, messages_of
from tests.support.api import EVENT, client_of, publish, read_pages
from tests.support.database import execute
from tests.support.query_plans import costly_statements, explained_statements

pytestmark = pytest.mark.django_db

OPEN = "$$->'Body'->>'state' = 'open'"
MESSAGES, DELIVERIES = "/api/v1/messages", "/api/v1/deliveries"
FIND = "/admin/find/"
MANY_MESSAGES: LiteralString = """
INSERT INTO delivery_message (event_type_id, publisher_id, body, size, content_type, headers, outcome,
                              deliveries_count, published_at)
SELECT %s, %s, '1', 1, 'text/plain', '[]', %s, 0, now() FROM generate_series(1, 4000)"""


@pytest.fixture
def stored(client: Client, event_type: EventType) -> list[int]:
    """Ten messages of the shop, odd ones open and of the team blue; one of another publisher, and one of a type."""
    factories.subscription(factories.subscriber("warehouse"), event_type, filter=OPEN)
    ids = []
    for number in range(10):
        body = b'{"state": "%s", "n": %d}' % (b"open" if number % 2 else b"shut", number)
        headers = {"X_Team": "blue"} if number % 2 else {}
        ids.append(publish(client, body, Idempotency_Key=f"order-{number}", **headers).json()["id"])
    return ids


def found(client: Client, path: str = MESSAGES, **query: str) -> list[int]:
    answer = client.get(path, query)
    assert answer.status_code == 200, answer.json()
    name = "id" if path == MESSAGES else "message_id"
    return [one[name] for one in answer.json()["items"]]


@pytest.mark.behaviour("2.16")
@pytest.mark.parametrize("path", [MESSAGES, DELIVERIES])
def test_by_body_header_key_publisher_and_event_type(management: Client, stored: list[int], path: str) -> None:
    odd = stored[1::2][::-1]
    every = stored[::-1] if path == MESSAGES else odd
    other = factories.publisher("other")
    factories.event_type("Shop.Other")
    publish(client_of(other), b'{"state": "open"}', event="Shop.Other", X_Team="red")
    assert found(management, path, filter=f"{OPEN} AND $$->'Body'->'n' > '4'") == odd[:3]
    assert found(management, path, header="x-team: blue") == odd
    assert found(management, path, header="X-Team: green") == []
    assert found(management, path, idempotency_key="order-3") == [stored[3]]
    assert found(management, path, idempotency_key="order-99") == []
    assert found(management, path, publisher="shop") == every
    assert found(management, path, publisher="shop", event_type=EVENT, header="X-Team") == odd
    assert found(management, path, publisher="shop", event_type="Shop.Other") == []
    assert found(management, path, subscriber="warehouse", header="X-Team", status="PENDING") == odd
    assert found(management, path, subscriber="warehouse", header="X-Team", status="REJECTED") == []
    assert found(management, path, subscriber="nobody", header="X-Team") == []


@pytest.mark.behaviour("2.16")
@pytest.mark.parametrize("path", [MESSAGES, DELIVERIES])
def test_by_time(management: Client, stored: list[int], path: str) -> None:
    now = timezone.now()
    for number, message_id in enumerate(stored):
        at = now - dt.timedelta(seconds=30 - number)
        Message.objects.filter(pk=message_id).update(published_at=at)
        Delivery.objects.filter(message=message_id).update(created_at=at)
    begin, end = now - dt.timedelta(seconds=27), now - dt.timedelta(seconds=23)
    within = [one for one in stored[3:7] if path == MESSAGES or stored.index(one) % 2][::-1]
    assert found(management, path, **{"from": begin.isoformat(), "to": end.isoformat()}) == within
    assert found(management, path, **{"from": now.isoformat()}) == []
    tomorrow = (now + dt.timedelta(days=1)).isoformat()
    assert found(management, path, to=tomorrow) == found(management, path)
    assert management.get(path, {"from": end.isoformat(), "to": begin.isoformat()}).status_code == 400
    assert management.get(path, {"filter": "$$->"}).status_code == 400


@pytest.mark.behaviour("2.16")
def test_pages_are_the_same_forwards_and_backwards(management: Client, stored: list[int]) -> None:
    assert [one["id"] for one in read_pages(management, MESSAGES, "header=X-Team", limit=2)] == stored[1::2][::-1]
    pages = read_pages(management, DELIVERIES, "header=X-Team&subscriber=warehouse", limit=2)
    assert [one["message_id"] for one in pages] == stored[1::2][::-1]


@pytest.mark.behaviour("2.16")
def test_a_search_ends_and_its_cursor_goes_on(
    management: Client, stored: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(message_search, "SLICE_WITH_BODIES", 3)
    moments = iter(range(1000))
    monkeypatch.setattr(pagination, "monotonic", lambda: float(next(moments) * pagination.SEARCH_SECONDS / 2))
    url: Any = f"{MESSAGES}?filter=$$->'Body'->'n' < '2'"
    seen, until, before = [], [], []
    while url:
        answer = management.get(url).json()
        seen += [one["id"] for one in answer["items"]]
        until.append(answer.get("searched_until"))
        before.append(answer["previous"])
        url = answer["next"]
    assert seen == [stored[1], stored[0]]
    assert [one is not None for one in until] == [True, True, True, False]
    assert until[0] > until[1] > until[2]
    assert [one is not None for one in before] == [False, True, True, True]
    assert [one for one in before[1:] if management.get(one).json()["next"] is None] == []


@pytest.mark.behaviour("2.16")
def test_keys_find_only_what_they_see(management: Client, client: Client, stored: list[int]) -> None:
    other = client_of(factories.publisher("other"))
    assert found(other, filter=OPEN) == []
    assert found(client, filter=OPEN, event_type=EVENT) == stored[1::2][::-1]
    assert found(client_of(factories.subscriber("else")), DELIVERIES, header="X-Team") == []


@pytest.mark.behaviour("2.16")
def test_no_statement_reads_past_all_that_two_conditions_do_not_have_in_common(
    client: Client, management: Client, event_type: EventType, monkeypatch: pytest.MonkeyPatch
) -> None:
    execute(MANY_MESSAGES, [event_type.pk, Publisher.objects.get().pk, "ROUTED"])
    other = factories.event_type("Shop.Other")
    execute(MANY_MESSAGES, [other.pk, factories.publisher("other").pk, "UNROUTED"])
    execute("ANALYZE delivery_message")
    with explained_statements(monkeypatch) as statements:
        assert found(client, event_type="Shop.Other") == []
        assert found(client, outcome="UNROUTED") == []
        assert found(management, event_type=EVENT, outcome="UNROUTED") == []
        assert found(management, outcome="DISCARDED,DEAD_LETTERED") == []
        assert len(found(management, outcome="UNROUTED")) == len(found(management, outcome="ROUTED,DISCARDED")) == 50
    assert costly_statements(statements) == []


@pytest.mark.behaviour("2.16")
@pytest.mark.parametrize("is_opened_since", [False, True])
def test_by_time_while_no_worker_has_opened_a_day_for_days(
    management: Client, event_type: EventType, is_opened_since: bool
) -> None:
    day = partitions.today() - dt.timedelta(days=3)
    partitions.open_days(day, ahead=0)
    now = timezone.now()
    times = [now - dt.timedelta(days=3), now - dt.timedelta(hours=30), now - dt.timedelta(minutes=20)]
    message: dict[str, Any] = {
        "event_type": event_type,
        "body": b"1",
        "size": 1,
        "content_type": "text/plain",
        "outcome": "UNROUTED",
    }
    late = [
        Message.objects.create(pk=partitions.first_id(day) + number, published_at=at, **message).pk
        for number, at in enumerate(times, 1)
    ]
    if is_opened_since:
        late.append(Message.objects.create(**message).pk)
    for begin, expected in ((times[1], late[:0:-1]), (times[2], late[:1:-1])):
        assert found(management, **{"from": begin.isoformat()}) == expected
    assert found(management, to=times[2].isoformat()) == late[1::-1]


@pytest.fixture
def searching() -> Client:
    """The admin site of somebody who may see contents."""
    return browser_with("delivery.view_message", "delivery.view_delivery", "delivery.view_payload")


def shown(browser: Client, kind: str, **asked: Any) -> tuple[list[int], str]:
    """Return the ids that a list of the admin site shows, and the whole page."""
    page = browser.get(f"/admin/delivery/{kind}/", asked)
    assert page.status_code == 200, page.headers
    return [one.pk for one in page.context["cl"].result_list], page.content.decode()


@pytest.mark.behaviour("2.16")
@pytest.mark.parametrize("kind", ["message", "delivery"])
def test_lists_of_the_admin_are_narrowed_by_all_of_it(searching: Client, stored: list[int], kind: str) -> None:
    by_message = dict(Delivery.objects.values_list("message_id", "pk"))
    odd = [one if kind == "message" else by_message[one] for one in stored[1::2]][::-1]
    whose = {"message": {"subscriber": "warehouse", "status": "PENDING"}, "delivery": {"status__exact": "PENDING"}}
    of_type = {"message": "event_type__id__exact", "delivery": "message__event_type__id__exact"}[kind]
    assert shown(searching, kind, filter=f"{OPEN} AND $$->'Body'->'n' > '4'")[0] == odd[:3]
    assert shown(searching, kind, header="X-Team: blue", **whose[kind])[0] == odd
    assert shown(searching, kind, idempotency_key="order-3")[0] == [odd[3]]
    assert (
        shown(searching, kind, **{of_type: EventType.objects.get(name=EVENT).pk, "filter": OPEN, "from": "1h"})[0]
        == odd
    )
    assert shown(searching, kind, filter=OPEN, to="2026-01-01T00:00:00")[0] == []
    found, page = shown(searching, kind, header="X-Team: blue", **{"from": "24h"})
    assert (found, "time: Last 24 hours" in page, "X-Team: blue" in page) == (odd, True, True)
    for team, is_found in (("blue", True), ("red", False)):
        assert shown(searching, kind, q=odd[0], header=f"X-Team: {team}")[0] == odd[:1] * is_found


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"from": "yesterday"}, '"yesterday" is no time'),
        ({"to": "0001-01-01T00:00:00+14:00"}, '"0001-01-01T00:00:00+14:00" is no time'),
        ({"filter": "$$->"}, '"$$->" is no filter: Expected'),
        ({"p": "x"}, "This page is not of this list"),
    ],
)
def test_lists_of_the_admin_say_what_they_do_not_understand(
    searching: Client, wrong: dict[str, str], told: str
) -> None:
    for page in ("message/", "delivery/", "delivery/act_on_all/"):
        answer = searching.get(f"/admin/delivery/{page}", wrong, follow=True)
        assert (answer.status_code, messages_of(answer).count("The list is not narrowed")) == (200, 1)
        assert told in messages_of(answer)


@pytest.mark.parametrize("wrong", [{"from": "yesterday"}, {"to": "\0"}])
def test_a_replay_of_a_list_that_is_not_understood_is_not_offered(admin: Client, wrong: dict[str, str]) -> None:
    answer = admin.get("/admin/delivery/delivery/replay_these/", wrong, follow=True)
    assert answer.redirect_chain[0][0].startswith("/admin/delivery/delivery/?")


@pytest.mark.behaviour("2.16")
def test_several_statuses_a_subscriber_and_time_narrow_every_list_of_deliveries(
    searching: Client, management: Client, stored: list[int]
) -> None:
    ended = {"closed_on": timezone.now().date(), "finished_at": timezone.now()}
    ids = [*Delivery.objects.order_by("-pk").values_list("pk", flat=True)]
    for one, status in zip(ids, ("REJECTED", "FAILED", "EXPIRED"), strict=False):
        Delivery.objects.filter(pk=one).update(status="IN_FLIGHT")
        Delivery.objects.filter(pk=one).update(status=status, **ended)
    chosen = ["REJECTED", "FAILED", "PENDING"]
    wanted = [one for number, one in enumerate(ids) if number != 2]
    of_subscriber = {"subscription__subscriber__id__exact": Subscriber.objects.get().pk}
    assert shown(searching, "delivery", status__exact=chosen)[0] == wanted
    assert shown(searching, "delivery", status__exact=chosen, **of_subscriber)[0] == wanted
    assert shown(searching, "delivery", status__exact=["FAILED", "EXPIRED"], **{"from": "1h"})[0] == ids[1:3]
    asked = {"status": ",".join(chosen), "subscriber": "warehouse"}
    assert [one["id"] for one in management.get(DELIVERIES, asked).json()["items"]] == wanted
    assert [one["id"] for one in management.get(DELIVERIES, {"status": asked["status"]}).json()["items"]] == wanted
    since = (timezone.now() - dt.timedelta(hours=1)).isoformat()
    dead = management.get("/api/v1/dead-letters", {"reason": "FAILED,EXPIRED", "from": since}).json()["items"]
    assert [one["id"] for one in dead] == ids[1:3]
    key = {"idempotency_key": "order-7"}  # of ids[1], which FAILED
    for asked, expected in (({}, ids[1:2]), ({"reason": "EXPIRED"}, []), ({"subscriber": "nobody"}, [])):
        assert [one["id"] for one in management.get("/api/v1/dead-letters", asked | key).json()["items"]] == expected
    assert management.get(MESSAGES, {"outcome": "ROUTED,UNROUTED"}).json()["items"]
    assert management.get(DELIVERIES, {"status": "FAILED,SENT"}).status_code == 400
    reader = browser_with("delivery.view_deadletter")
    page = reader.get("/admin/delivery/deadletter/", {"reason": ["FAILED", "EXPIRED"], "from": "1h"})
    assert [one.pk for one in page.context["cl"].result_list] == ids[1:3]
    for reasons in (["FAILED", "DEAD_LETTERED"], ["DEAD_LETTERED", "FAILED"]):
        page = reader.get("/admin/delivery/deadletter/", {"reason": reasons}, follow=True)
        assert [one.pk for one in page.context["cl"].result_list] == ids[1:2]


@pytest.mark.behaviour("2.16")
def test_lists_of_the_admin_have_pages_without_an_end(
    searching: Client, stored: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("delivery.admin.messages.MessageAdmin.list_per_page", 3)
    for asked, wanted in (({}, stored[::-1]), ({"header": "X-Team"}, stored[1::2][::-1])):
        seen, address = [], "/admin/delivery/message/?" + "&".join(f"{name}={value}" for name, value in asked.items())
        while address:
            page = searching.get(address).context["cl"]
            seen += [one.pk for one in page.result_list]
            address = page.older and f"/admin/delivery/message/{page.older}"
        assert seen == wanted
        back = searching.get(f"/admin/delivery/message/{page.newer}").context["cl"]
        assert [one.pk for one in back.result_list] == wanted[len(wanted) - len(page.result_list) - 3 :][:3]


def test_a_list_is_searched_for_seconds_and_then_goes_on(
    searching: Client, stored: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    moments = iter(range(1000))
    monkeypatch.setattr(pagination, "monotonic", lambda: float(next(moments) * pagination.SEARCH_SECONDS / 2))
    monkeypatch.setattr(message_search, "SLICE_WITH_BODIES", 3)
    found, page = shown(searching, "message", filter="$$->'Body'->'n' < '1'")
    assert (found, "Go on searching" in page, "searched until" in page) == ([], True, True)
    assert ("Nothing matches" in page, "Nothing found so far" in page) == (False, True)


def test_lists_of_the_admin_find_a_key_and_what_went_astray_without_looking_at_the_rest(
    searching: Client, stored: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    moments = iter(range(1000))
    monkeypatch.setattr(pagination, "monotonic", lambda: float(next(moments) * pagination.SEARCH_SECONDS / 2))
    monkeypatch.setattr(lists, "SLICE", 2)
    monkeypatch.setattr(message_search, "SLICE", 2)
    Message.objects.update(outcome="ROUTED")
    for number, outcome in ((0, "DEAD_LETTERED"), (1, "UNROUTED"), (2, "DISCARDED")):
        Message.objects.filter(pk=stored[number]).update(outcome=outcome)
    delivery = Delivery.objects.get(message=stored[1])
    Delivery.objects.filter(pk=delivery.pk).update(status="IN_FLIGHT")
    ended = {"closed_on": timezone.now().date(), "finished_at": timezone.now()}
    Delivery.objects.filter(pk=delivery.pk).update(status="FAILED", **ended)
    assert shown(searching, "message", idempotency_key="order-0")[0] == stored[:1]
    assert shown(searching, "delivery", idempotency_key="order-1")[0] == [delivery.pk]
    assert shown(searching, "message", outcome__exact="DEAD_LETTERED")[0] == stored[:1]
    assert shown(searching, "message", outcome__exact=["UNROUTED", "DEAD_LETTERED"])[0] == stored[1::-1]
    assert shown(searching, "message", outcome__exact="UNROUTED", idempotency_key="order-0")[0] == []
    dead = browser_with("delivery.view_deadletter", "delivery.view_payload")
    assert shown(dead, "deadletter", idempotency_key="order-1")[0] == [delivery.pk]
    assert shown(dead, "deadletter", idempotency_key="order-3")[0] == []


def test_the_admin_searches_contents_only_with_permission(stored: list[int]) -> None:
    browser = browser_with("delivery.view_message")
    assert 'name="header"' not in browser.get("/admin/delivery/message/").content.decode()
    for asked in ({"filter": "$$->'Body'->'n' = '4'"}, {"header": "X-Team"}, {"idempotency_key": "order-3"}):
        assert browser.get("/admin/delivery/message/", asked).status_code == 400


@pytest.mark.behaviour("2.17")
def test_the_box_takes_any_id_or_name_and_goes_to_what_has_it(admin: Client, stored: list[int]) -> None:
    delivery = Delivery.objects.earliest("pk")
    subscription = delivery.subscription
    assert subscription
    leads_to = {
        f"msg_{stored[0]}": reverse("admin:delivery_message_change", args=[stored[0]]),
        f" dlv_{delivery.pk}": reverse("admin:delivery_delivery_change", args=[delivery.pk]),
        "Warehouse": reverse("admin:subscriptions_subscriber_change", args=[subscription.subscriber_id]),
        EVENT: reverse("admin:subscriptions_eventtype_change", args=[subscription.event_type_id]),
        subscription.endpoint: reverse("admin:subscriptions_subscription_change", args=[subscription.pk]),
    }
    assert {term: admin.get(FIND, {"q": term}).headers.get("Location") for term in leads_to} == leads_to
    both = admin.get(FIND, {"q": "wareho"}).content.decode()
    assert ("warehouse ←" in both, leads_to["Warehouse"] in both) == (True, True)
    Subscriber.objects.bulk_create(Subscriber(name=f"depot-{number}") for number in range(20))
    exact = factories.subscriber("Depot")
    assert admin.get(FIND, {"q": "depot"}).headers["Location"].endswith(f"/{exact.pk}/change/")
    assert "the first 20 of each kind" in admin.get(FIND, {"q": "epot"}).content.decode()
    assert "Nothing that you may see" in admin.get(FIND, {"q": "att_1"}).content.decode()
    assert "Nothing that you may see" in browser_with("delivery.view_line").get(FIND, {"q": EVENT}).content.decode()


@pytest.mark.behaviour("2.17")
@pytest.mark.usefixtures("stored")
def test_the_api_takes_ids_with_the_prefix_of_their_kind_and_of_no_other(management: Client) -> None:
    earliest = Delivery.objects.earliest("pk")
    delivery, message = earliest.pk, earliest.message_id
    found = {
        f"messages/msg_{message}": 200,
        f"messages/{message}/explanation": 200,
        f"messages/dlv_{message}": 404,
        f"deliveries/dlv_{delivery}": 200,
        f"deliveries/msg_{delivery}": 404,
        f"deliveries/dlv_{'9' * 5_000}": 404,
        f"deliveries?message=dlv_{message}": 400,
        f"deliveries?message=msg_-{message}": 400,
        "deliveries?group=grp_1": 200,
        "deliveries?group=msg_1": 400,
    }
    assert {path: management.get(f"/api/v1/{path}").status_code for path in found} == found
    listed = management.get(f"/api/v1/deliveries?message=msg_{message}").json()["items"]
    assert delivery in [one["id"] for one in listed]
