"""Scripts in the API and the admin: what does not compile is refused, with its line (contract 8.1)."""

import pytest
from django.test import Client

from subscriptions.models import EventKind, Subscription
from tests.support import factories
from tests.support.admin import SUBSCRIPTION_FORM, form_shown, save_form
from tests.support.api import client_of

pytestmark = pytest.mark.django_db

ROOT = "/api/v1/subscriptions"
SCRIPT = "$outmessage = {\n  id: $inmessage.id,\n};"
BROKEN = "$outmessage = {\n  id: $inmessage.,\n};"
WRONG = "The script does not compile: SyntaxError: expecting field name (line 2)."


@pytest.fixture
def made() -> Subscription:
    return factories.subscription()


@pytest.mark.behaviour("8.1")
def test_a_subscription_is_made_and_changed_with_a_script() -> None:
    factories.subscriber("shop")
    factories.event_type("Order.Paid")
    new = {"subscriber": "shop", "event_type": "Order.Paid", "endpoint": "https://shop.example/hook", "script": SCRIPT}
    created = client_of().post(ROOT, new)
    assert (created.status_code, created.json()["script"]) == (201, SCRIPT)
    changed = client_of().patch(created["Location"], {"script": ""})
    assert (changed.status_code, changed.json()["script"], changed["ETag"]) == (200, "", '"2"')


@pytest.mark.behaviour("8.1")
@pytest.mark.parametrize(
    ("script", "wrong"),
    [
        (BROKEN, WRONG),
        ("/*" + "x" * 65536 + "*/", "A script has at most 64 KiB; this one has 65,540 bytes."),
        ("return 5", "The script does not compile: SyntaxError: return not in a function (line 1)."),
    ],
)
def test_a_script_that_does_not_compile_is_refused_with_its_line(made: Subscription, script: str, wrong: str) -> None:
    answer = client_of().patch(f"{ROOT}/{made.pk}", {"script": script})
    (error,) = answer.json()["errors"]
    assert (answer.status_code, error["pointer"], error["detail"]) == (400, "#/script", wrong)
    made.refresh_from_db()
    assert (made.script, made.version) == ("", 1)


@pytest.mark.behaviour("8.1", "8.2")
@pytest.mark.parametrize(
    ("kind", "wrong"),
    [
        ("QUEUE", "TOPIC and SYNC subscriptions may have a script; Order.Paid is of kind QUEUE."),
        ("SYNC", "A SYNC subscription has a script in place of a URL: give the endpoint webr://."),
    ],
)
def test_queue_and_sync_subscriptions_to_a_url_have_no_script(admin: Client, kind: str, wrong: str) -> None:
    event_type = factories.event_type("Order.Paid", EventKind(kind))
    made = factories.subscription(factories.subscriber("shop"), event_type)
    new = {"subscriber": "shop", "event_type": "Order.Paid", "endpoint": "https://shop.example/hook", "script": SCRIPT}
    changed = client_of().patch(f"{ROOT}/{made.pk}", {"script": SCRIPT})
    answers = [changed] if kind == "SYNC" else [changed, client_of().post(ROOT, new)]
    for answer in answers:
        (error,) = answer.json()["errors"]
        assert (answer.status_code, error["pointer"], error["detail"]) == (400, "#/script", wrong)
    page = save_form(admin, made, form_shown(admin, made) | {"script": SCRIPT})
    assert page.context["errors"] == [[wrong]]


@pytest.mark.behaviour("8.1")
def test_the_admin_refuses_it_beside_its_field(admin: Client, made: Subscription) -> None:
    assert save_form(admin, made, form_shown(admin, made) | {"script": SCRIPT}).status_code == 302
    refused = save_form(admin, made, form_shown(admin, made) | {"script": BROKEN})
    assert refused.context["errors"] == [[WRONG]]
    made.refresh_from_db()
    assert made.script.splitlines() == SCRIPT.splitlines()


@pytest.mark.behaviour("8.2")
def test_a_script_that_does_not_compile_is_not_reported_as_missing(admin: Client) -> None:
    price = factories.event_type("Price", EventKind.SYNC)
    new = {"subscriber": factories.subscriber("shop").pk, "event_type": price.pk, "endpoint": "webr://price"}
    form = {**SUBSCRIPTION_FORM, **new, "status": "ACTIVE", "script": BROKEN}
    refused = admin.post("/admin/subscriptions/subscription/add/", form)
    assert refused.context["errors"] == [[WRONG]]
