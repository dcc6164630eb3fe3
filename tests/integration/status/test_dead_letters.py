"""What came to nothing, in one place: over the API, in the admin, and along an index (contract 5.3)."""

import json
from typing import Any
from urllib.parse import urlencode

import pytest
from django.test import Client

from delivery.models import Message
from delivery.status.delivery_search import ALL_WITH_STATUS, REASONS
from subscriptions.models import Subscription
from tests.support import factories
from tests.support.api import client_of, problem_of, read_pages
from tests.support.broker import line_of
from tests.support.database import execute
from tests.support.query_plans import ExplainedStatement

pytestmark = [pytest.mark.behaviour("5.3"), pytest.mark.django_db]

URL = "/api/v1/dead-letters"
LIST = "/admin/delivery/deadletter/"
MANY_REDUNDANT = """
INSERT INTO delivery_delivery (message_id, subscription_id, status, size, closed_on, finished_at)
SELECT 1, %s, 'REDUNDANT', 1, current_date, now() FROM generate_series(1, 20000)
"""
FINAL = ("DELIVERED", "REDUNDANT", *REASONS)


@pytest.fixture
def subscription() -> Subscription:
    return factories.subscription(factories.subscriber("shop"))


@pytest.fixture
def theirs() -> Subscription:
    return factories.subscription(factories.subscriber("theirs"))


@pytest.fixture
def ended(subscription: Subscription, theirs: Subscription) -> dict[str, list[int]]:
    """File two of each final status, one for each subscriber in turn; return their ids, the newest first."""
    found: dict[str, list[int]] = {status: [] for status in FINAL}
    for one in (subscription, theirs):
        for status in FINAL:
            found[status].insert(0, file(one, status))
    return found


FILE = """
INSERT INTO delivery_delivery (message_id, line_id, subscription_id, status, size, closed_on, finished_at)
VALUES (%s, %s, %s, %s, 1, current_date, now()) RETURNING id
"""


def file(subscription: Subscription, status: str, message_id: int = 1) -> int:
    row = [message_id, line_of(subscription.subscriber).pk, subscription.pk, status]
    return int(execute(FILE, row)[0][0])


def listed(client: Client, **query: Any) -> list[int]:
    return [one["id"] for one in read_pages(client, URL, urlencode(query), limit=2)]


def test_only_dead_letters_are_listed_newest_first(management: Client, ended: dict[str, list[int]]) -> None:
    dead = sorted((one for reason in REASONS for one in ended[reason]), reverse=True)
    assert {*REASONS} == {"REJECTED", "3xxNOTSUPPORTED", "FAILED", "EXPIRED", "CANCELLED"}
    assert listed(management) == dead
    assert listed(management, subscriber="shop") == dead[5:]


@pytest.mark.parametrize("reason", REASONS)
def test_dead_letters_are_found_by_how_they_ended(management: Client, ended: dict[str, list[int]], reason: str) -> None:
    assert listed(management, reason=reason) == ended[reason]
    assert listed(management, reason=reason, subscriber="theirs") == ended[reason][:1]


@pytest.mark.behaviour("1.9")
def test_filters_by_event_type(management: Client, ended: dict[str, list[int]], subscription: Subscription) -> None:
    placed, paid = (factories.event_type(f"Order.{name}") for name in ("Placed", "Paid"))
    by_name = factories.subscription(subscription.subscriber, placed)
    by_pattern = factories.subscription(subscription.subscriber, event_pattern="Order.*")
    messages = [
        Message.objects.create(event_type=one, body=b"1", size=1, content_type="text/plain", outcome="ROUTED").pk
        for one in (placed, paid)
    ]
    own = [file(by_name, "FAILED", messages[0]), *(file(by_pattern, "REJECTED", one) for one in messages)]
    assert listed(management, event_type="Order.Placed") == [own[1], own[0]]
    assert listed(management, event_type="Order.Paid", subscriber="shop") == [own[2]]
    assert listed(management, event_type="Order.Paid", subscriber="theirs") == []
    assert listed(management, event_type="Order.Placed", reason="FAILED") == [own[0]]
    assert listed(management, event_type="Unknown") == []


@pytest.mark.behaviour("1.2")
def test_a_subscriber_sees_its_own(ended: dict[str, list[int]], theirs: Subscription) -> None:
    own = client_of(theirs.subscriber)
    assert listed(own) == sorted((ended[reason][0] for reason in REASONS), reverse=True)
    assert listed(own, subscriber="shop") == []
    assert own.get(f"{URL}/counts").json() == dict.fromkeys(REASONS, 1)


@pytest.mark.behaviour("2.14")
def test_dead_letters_are_counted_with_undeliverable_messages(management: Client, ended: dict[str, list[int]]) -> None:
    for outcome in ("DEAD_LETTERED", "UNROUTED"):
        Message.objects.create(body=b"1", size=1, content_type="text/plain", outcome=outcome)
    deliveries: dict[str, int] = dict.fromkeys(REASONS, 2)
    assert management.get(f"{URL}/counts").json() == {**deliveries, "DEAD_LETTERED": 1}
    elsewhere = management.get(URL, {"reason": "DEAD_LETTERED"})
    assert (elsewhere.status_code, "messages?outcome=DEAD_LETTERED" in str(elsewhere.json()["errors"])) == (400, True)
    (message,) = management.get("/api/v1/messages", {"outcome": "DEAD_LETTERED"}).json()["items"]
    assert message["outcome"] == "DEAD_LETTERED"


@pytest.mark.parametrize("order", [{"before": "<", "direction": "DESC"}, {"before": ">", "direction": "ASC"}])
def test_other_finished_deliveries_are_not_read(
    ended: dict[str, list[int]], subscription: Subscription, order: dict[str, str]
) -> None:
    asked: dict[str, Any] = {"statuses": [*REASONS], "key": 0 if order["before"] == ">" else 2**62, "limit": 50}
    execute(MANY_REDUNDANT, [subscription.pk])
    execute("ANALYZE delivery_delivery")
    ((answer,),) = execute(f"EXPLAIN (ANALYZE, FORMAT JSON) {ALL_WITH_STATUS.format(**order)}", asked)
    plan = ExplainedStatement(ALL_WITH_STATUS, (json.loads(answer) if isinstance(answer, str) else answer)[0])
    assert (plan.searched, plan.rows_read) == ([], 2 * len(REASONS))


@pytest.mark.parametrize("query", [{"reason": "DELIVERED"}, {"reason": "PENDING"}, {"cursor": "x"}, {"other": "1"}])
def test_an_invalid_query_is_refused(management: Client, query: dict[str, str]) -> None:
    assert problem_of(management.get(URL, query))[0] == 400


def test_the_admin_lists_them_by_end(admin: Client, ended: dict[str, list[int]], subscription: Subscription) -> None:
    def shown(**query: Any) -> list[int]:
        return [row.pk for row in admin.get(LIST, query).context["cl"].result_list]

    dead = sorted((one for reason in REASONS for one in ended[reason]), reverse=True)
    assert shown() == dead
    assert shown(reason="FAILED") == ended["FAILED"]
    assert shown(subscription__id__exact=subscription.pk) == dead[5:]
    assert shown(q=f"dlv_{ended['FAILED'][0]}") == ended["FAILED"][:1]
    assert shown(q=ended["DELIVERED"][0]) == []
    page = admin.get(LIST).content.decode()
    assert "Failed (2)" in page
    assert "No such subscriber: messages without a delivery (0)" in page
    to_nobody = admin.get(LIST, {"reason": "DEAD_LETTERED"})
    assert to_nobody["Location"] == "/admin/delivery/message/?outcome__exact=DEAD_LETTERED"
    narrowed = {"reason": "DEAD_LETTERED", "from": "24h", "message__publisher__id__exact": "7", "header": "X: a"}
    assert admin.get(LIST, narrowed)["Location"] == (
        f"{to_nobody['Location']}&from=24h&publisher__id__exact=7&header=X%3A+a"
    )
    assert f"/admin/delivery/delivery/{dead[0]}/change/" in page
