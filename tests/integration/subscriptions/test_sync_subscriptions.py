"""What a SYNC subscription may be: a script in place of a URL, and none that is like another (contract 7.3, 8.2)."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from django.core.exceptions import ValidationError
from django.db import connection, transaction
from django.test import Client

from broker_project.stack.load.wait import wait_until
from subscriptions import edit
from subscriptions.models import EventKind, EventType, Status, Subscription
from tests.support import factories
from tests.support.admin import SUBSCRIPTION_FORM, form_shown, save_form
from tests.support.api import Answer, client_of
from tests.support.database import lock_waiters

pytestmark = pytest.mark.django_db

ROOT = "/api/v1/subscriptions"
URL = "https://shop.example/hook"
PRICE = "Shop.Price"


@pytest.fixture
def price() -> EventType:
    return factories.event_type(PRICE, EventKind.SYNC)


def create(**fields: Any) -> Answer:
    new = {"subscriber": factories.subscriber().name, "event_type": PRICE, "endpoint": URL, **fields}
    return client_of().post(ROOT, new)


def error_in(answer: Answer) -> tuple[int, str, str]:
    (error,) = answer.json()["errors"]
    return answer.status_code, error["pointer"], error["detail"]


@pytest.mark.behaviour("8.2")
@pytest.mark.parametrize(
    ("event", "fields", "refused"),
    [
        (PRICE, {"endpoint": "webr://price", "script": "$outmessage = 5"}, ""),
        (PRICE, {"endpoint": "webr://", "script": "$outmessage = 5"}, ""),
        (PRICE, {"endpoint": "webr://price"}, "#/script"),
        (PRICE, {"endpoint": "webr://price", "script": " \n"}, "#/script"),
        (PRICE, {"endpoint": "webr://a b", "script": "5"}, "#/endpoint"),
        (PRICE, {"endpoint": "POST:webr://price", "script": "5"}, "#/endpoint"),
        (PRICE, {"endpoint": URL, "script": "$outmessage = 5"}, "#/script"),
        ("Topic", {"endpoint": "webr://price", "script": "$outmessage = 5"}, "#/endpoint"),
        ("Queue", {"endpoint": "webr://price", "script": "$outmessage = 5"}, "#/endpoint"),
        ("Topic", {"endpoint": "webr://price"}, "#/endpoint"),
    ],
)
def test_a_script_replaces_a_url(price: EventType, event: str, fields: dict[str, str], refused: str) -> None:
    factories.event_type("Topic")
    factories.event_type("Queue", EventKind.QUEUE)
    answer = create(event_type=event, **fields)
    if refused:
        assert error_in(answer)[:2] == (400, refused)
    else:
        assert (answer.status_code, answer.json()["endpoint"]) == (201, fields["endpoint"])


@pytest.mark.behaviour("8.2")
def test_a_pattern_matches_topics_only_and_so_has_a_url() -> None:
    new = {"subscriber": factories.subscriber().name, "event_pattern": "Shop.*", "endpoint": "webr://", "script": "5"}
    assert error_in(client_of().post(ROOT, new))[:2] == (400, "#/endpoint")


@pytest.mark.behaviour("8.2")
def test_a_script_and_its_endpoint_come_and_go_together(price: EventType) -> None:
    made = factories.subscription(event_type=price, endpoint="webr://price", script="$outmessage = 5")
    for changes, refused in (({"script": ""}, "#/script"), ({"endpoint": URL}, "#/script")):
        assert error_in(client_of().patch(f"{ROOT}/{made.pk}", changes))[:2] == (400, refused)
    both = {"script": "", "endpoint": URL}
    assert client_of().patch(f"{ROOT}/{made.pk}", both).status_code == 200


FILTERS: dict[str, Any] = {"header_filter_string": "eu", "filter": "$$->'Body'->>'n' = '1' and $$->'Body'->>'m' = '2'"}


@pytest.mark.behaviour("7.3")
@pytest.mark.parametrize(
    ("filters", "pointer"),
    [
        (FILTERS, "#/header_filter_string"),
        (FILTERS | {"filter": "$$ -> 'Body'->>'n'='1'  AND $$->'Body'->>'m' = '2'"}, "#/header_filter_string"),
        (FILTERS | {"filter": "$$->'Body'->>'m' = '2' and $$->'Body'->>'n' = '1'"}, ""),
        (FILTERS | {"header_filter_string": "EU"}, ""),
        (FILTERS | {"filter": ""}, ""),
        ({"filter": FILTERS["filter"]}, ""),
        ({}, ""),
    ],
)
@pytest.mark.parametrize("status", list(Status))
def test_a_second_subscription_with_the_same_filters_is_refused_in_every_status(
    price: EventType, filters: dict[str, str], pointer: str, status: Status
) -> None:
    factories.subscription(event_type=price, status=status, **FILTERS)
    factories.subscription(event_type=factories.event_type(kind=EventKind.SYNC))
    answer = create(**filters)
    if not pointer:
        assert answer.status_code == 201
        return
    wrong = (
        "A subscription of another subscriber has the same filters, and a SYNC event goes to one endpoint: "
        "give this one other filters, or change that one."
    )
    assert error_in(answer) == (400, pointer, wrong)


@pytest.mark.behaviour("7.3")
@pytest.mark.parametrize("kind", [EventKind.TOPIC, EventKind.QUEUE])
def test_other_kinds_can_have_equal_subscriptions(kind: EventKind) -> None:
    event_type = factories.event_type(PRICE, kind)
    factories.subscription(event_type=event_type, **FILTERS)
    assert create(**FILTERS).status_code == 201


@pytest.mark.behaviour("7.3")
def test_only_a_change_that_makes_two_equal_is_refused(price: EventType) -> None:
    factories.subscription(event_type=price)
    made = factories.subscription(event_type=price, filter="$$->'Body' ? 'n'")
    address = f"{ROOT}/{made.pk}"
    assert error_in(client_of().patch(address, {"filter": ""}))[:2] == (400, "#/filter")
    twin = factories.subscription(made.subscriber, price, header_filter_string="eu")
    own = client_of().patch(address, {"filter": "", "header_filter_string": "eu"})
    assert error_in(own)[2].startswith(f"Subscription {twin.pk} has the same filters")
    assert client_of().patch(address, {"filter": "$$->'Body'  ?  'n'"}).status_code == 200
    Subscription.objects.update(filter="")  # by other hands
    assert client_of().patch(address, {"position": 3}).status_code == 200
    assert client_of().post(f"{address}/inactivate").status_code == 200


@pytest.mark.behaviour("7.3")
def test_the_admin_refuses_it_beside_its_field(price: EventType, admin_client: Client) -> None:
    factories.subscription(event_type=price, header_filter_string="eu")
    made = factories.subscription(event_type=price)
    page = save_form(admin_client, made, form_shown(admin_client, made) | {"header_filter_string": "eu"})
    ((wrong,),) = page.context["errors"]
    assert wrong.startswith("A subscription of another subscriber has the same filters")
    form = {**SUBSCRIPTION_FORM, "endpoint": URL, "header_filter_string": "eu"}
    new = form | {"subscriber": factories.subscriber().pk, "event_type": price.pk, "status": "ACTIVE"}
    page = admin_client.post("/admin/subscriptions/subscription/add/", new)
    ((wrong,),) = page.context["errors"]
    assert wrong.startswith("A subscription of another subscriber has the same filters")
    assert admin_client.post("/admin/subscriptions/subscription/add/", new | {"header_filter_string": "us"})
    assert Subscription.objects.count() == 3


def new_like_the_others(event_type: EventType) -> Subscription:
    return Subscription(subscriber=factories.subscriber(), event_type=event_type, endpoint=URL)


@pytest.mark.behaviour("7.3")
@pytest.mark.django_db(transaction=True)
def test_of_two_saved_concurrently_the_second_waits_and_is_refused(price: EventType) -> None:
    earlier, later = new_like_the_others(price), new_like_the_others(price)

    def is_saved() -> bool:
        try:
            edit.create(later)
        except ValidationError:
            return False
        else:
            return True
        finally:
            connection.close()

    with ThreadPoolExecutor(1) as threads:
        with transaction.atomic():
            edit.create(earlier)
            saved = threads.submit(is_saved)
            wait_until(lambda: saved.done() or lock_waiters())
        assert not saved.result()
    assert [*Subscription.objects.all()] == [earlier]
