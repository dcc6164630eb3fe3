"""Endpoints, monitors and callbacks to which nothing is sent are refused when they are saved or published."""

from typing import Any

import pytest
from django.test import Client

from broker_project.core.egress import EgressPolicy, networks_in
from delivery.models import Message
from subscriptions.models import EventType, Subscription
from tests.support import factories
from tests.support.admin import form_shown, save_form
from tests.support.api import client_of, job_type, problem_of, publish_job

pytestmark = pytest.mark.django_db

ROOT = "/api/v1/subscriptions"
FIELDS = ["endpoint", "monitor_url"]
INNER = "http://10.1.2.3/"
BLOCKED = ["http://169.254.169.254/latest/", "http://localhost/", INNER, "http://0x7f.1/"]
"""One of each kind: the unit tests have more."""


@pytest.fixture(autouse=True)
def _only_the_internet(settings: Any) -> None:
    settings.EGRESS_POLICY = EgressPolicy()


@pytest.fixture
def made() -> Subscription:
    return factories.subscription(endpoint="https://shop.example/hook")


def new(**fields: str) -> dict[str, str]:
    return {"subscriber": "shop", "event_type": "Order.Paid", "endpoint": "https://shop.example/hook", **fields}


@pytest.mark.behaviour("1.5")
@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize("url", BLOCKED)
def test_the_api_refuses_a_blocked_url_at_its_field(made: Subscription, field: str, url: str) -> None:
    factories.subscriber("shop")
    factories.event_type("Order.Paid")
    client = client_of()
    for answer in (client.post(ROOT, new(**{field: url})), client.patch(f"{ROOT}/{made.pk}", {field: url})):
        assert problem_of(answer) == (400, "invalid")
        assert [error["pointer"] for error in answer.json()["errors"]] == [f"#/{field}"]
    made.refresh_from_db()
    assert (Subscription.objects.count(), made.version) == (1, 1)


@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize("url", [BLOCKED[0], BLOCKED[-1]])
def test_the_admin_refuses_a_blocked_url_at_its_field(admin: Client, made: Subscription, field: str, url: str) -> None:
    answer = save_form(admin, made, form_shown(admin, made) | {field: url})
    assert (answer.status_code, [*answer.context["adminform"].form.errors]) == (200, [field])
    made.refresh_from_db()
    assert made.version == 1


def test_other_fields_of_a_subscription_with_a_blocked_endpoint_can_change(admin: Client) -> None:
    made = factories.subscription(endpoint="http://127.0.0.1:9/hook")
    assert save_form(admin, made, form_shown(admin, made) | {"position": "7"}).status_code == 302
    made.refresh_from_db()
    assert made.position == 7
    assert client_of().patch(f"{ROOT}/{made.pk}", {"position": 8}).status_code == 200


@pytest.mark.parametrize("line_end", ["\n", "\r\n"])
def test_a_trailing_line_end_is_removed_or_refused(line_end: str, made: Subscription) -> None:
    answer = client_of().patch(f"{ROOT}/{made.pk}", {"endpoint": f"https://a.example/{line_end}"})
    made.refresh_from_db()
    assert (answer.status_code, made.endpoint) in {(200, "https://a.example/"), (400, "https://shop.example/hook")}


@pytest.mark.behaviour("6.7")
@pytest.mark.parametrize("url", BLOCKED)
def test_callbacks_to_blocked_addresses_are_refused(client: Client, event_type: EventType, url: str) -> None:
    job_type()
    assert problem_of(publish_job(client_of(), url)) == (400, "unsuitable_callback")
    assert not Message.objects.exists()


def test_a_network_that_a_setting_allows_is_accepted(made: Subscription, settings: Any) -> None:
    settings.EGRESS_POLICY = EgressPolicy(networks_in("10.1.0.0/16"))
    answer = client_of().patch(f"{ROOT}/{made.pk}", {"endpoint": INNER})
    assert (answer.status_code, answer.json()["endpoint"]) == (200, INNER)
