"""One form sets up a webhook, all of it or nothing, and ends with receivers that accept what the broker sends."""

import html
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from django.contrib.admin.models import LogEntry
from django.test import Client

from broker_project.stack.load.wait import wait_until
from broker_project.stack.ports import any_free
from subscriptions.models import EventKind, EventType, Subscriber, Subscription
from tests.support import factories
from tests.support.admin import browser_with
from tests.support.api import Answer
from tests.support.documented_programs import is_listening

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("calls")]

PAGE = "/admin/subscriptions/subscription/set-up/"
FORM = {"event_type": "Shop.Order.Placed", "subscriber": "warehouse", "endpoint": "http://127.0.0.1:9000/orders"}
NAMING = ("subscriptions.add_subscription", "subscriptions.view_eventtype", "subscriptions.view_subscriber")


def stored() -> tuple[int, ...]:
    return tuple(model.objects.count() for model in (EventType, Subscriber, Subscription, LogEntry))


def program_of(answer: Answer, title: str) -> str:
    """Return what the page has a person paste into a terminal."""
    (found,) = re.findall(rf'<pre [^>]*data-copy="{title}"[^>]*>(.+?)</pre>', answer.text, re.DOTALL)
    return html.unescape(found)


def test_everything_is_created_and_the_secret_is_shown_once(admin: Client) -> None:
    answer = admin.post(PAGE, {**FORM, "kind": "TOPIC"})
    made = Subscription.objects.get()
    assert (str(made), made.endpoint) == ("warehouse ← Shop.Order.Placed", FORM["endpoint"])
    assert made.signing_secret in answer.text
    assert "no-store" in answer["Cache-Control"]
    assert LogEntry.objects.count() == 3
    before = stored()
    again = admin.post(PAGE, FORM, follow=True)
    assert (stored(), made.signing_secret in again.text) == (
        (before[0], before[1], before[2] + 1, before[3] + 1),
        False,
    )


def test_what_exists_is_chosen(admin: Client) -> None:
    asked, shop = factories.event_type("Shop.Price.Asked", kind=EventKind.SYNC), factories.subscriber("shop")
    assert admin.get(PAGE).text.count(f'<option value="{asked.name}">') == 1
    admin.post(PAGE, {**FORM, "event_type": asked.name, "subscriber": "shop"})
    made = Subscription.objects.get()
    assert (made.event_type, made.subscriber, Subscriber.objects.count()) == (asked, shop, 1)
    twin = admin.post(PAGE, {**FORM, "event_type": asked.name, "subscriber": "store"})
    assert "has the same filters" in str(twin.context["form"].errors)
    assert not Subscriber.objects.filter(name="store").exists()


@pytest.mark.behaviour("2.8")
@pytest.mark.parametrize(
    ("field", "given"),
    [
        ("event_type", {"event_type": ""}),
        ("event_type", {"event_type": "Shop Order"}),
        ("event_type", {"event_type": "Broker.Own"}),
        ("kind", {"event_type": "Shop.Price.Asked", "kind": "QUEUE"}),
        ("subscriber", {"subscriber": "a/b"}),
        ("subscriber", {"subscriber": "default"}),
        ("endpoint", {"endpoint": ""}),
        ("endpoint", {"endpoint": "127.0.0.1:9000"}),
        ("endpoint", {"endpoint": "http://10.1.2.3/"}),
        ("filter", {"filter": "$$->"}),
        ("__all__", {"kind": "SYNC", "endpoint": "webr://prices"}),  # which takes a script, and the form has none
    ],
)
def test_an_error_is_beside_its_field_and_nothing_is_stored(admin: Client, field: str, given: dict[str, str]) -> None:
    factories.event_type("Shop.Price.Asked", kind=EventKind.SYNC)
    before = stored()
    answer = admin.post(PAGE, {**FORM, **given})
    errors = answer.context["form"].errors
    assert (answer.status_code, {name: len(texts) for name, texts in errors.items()}) == (200, {field: 1})
    assert stored() == before


def test_new_names_take_the_permission_to_add_them() -> None:
    assert browser_with(*NAMING[:2]).get(PAGE).status_code == 403
    refused = browser_with(*NAMING).post(PAGE, FORM)
    assert {*refused.context["form"].errors} == {"event_type", "subscriber"}
    factories.event_type(FORM["event_type"])
    factories.subscriber(FORM["subscriber"])
    assert browser_with(*NAMING).post(PAGE, FORM).status_code == 200
    assert Subscription.objects.count() == 1


@pytest.mark.parametrize("title", ["Python", "Node.js"])
def test_a_pasted_receiver_takes_the_test_event_and_a_signed_request(admin: Client, title: str, tmp_path: Path) -> None:
    if title == "Node.js" and not shutil.which("node"):
        pytest.skip("Node.js is not installed")
    port = any_free()
    page = admin.post(PAGE, {**FORM, "endpoint": f"PUT:http://127.0.0.1:{port}/it's?a=1&b=2"})
    sending = f"/admin/subscriptions/subscription/{Subscription.objects.get().pk}/send_test_event/"
    refused = admin.post(sending)
    assert "No answer after" in refused.text
    assert "load delay:3s" in refused.text
    with running(program_of(page, title), port, tmp_path):
        taken = admin.post(sending, {"tries": "1"})
        assert "Answered 204 after" in taken.text
        assert "try 2" in taken.text
        assert "load delay:3s" not in taken.text
        curl = program_of(page, "curl")
        assert b"204" in pasted(curl, tmp_path)
        assert b"401" in pasted(curl.replace("SECRET=whsec_", "SECRET=whsec_AAAA"), tmp_path)


@contextmanager
def running(program: str, port: int, folder: Path) -> Iterator[None]:
    with subprocess.Popen(["bash", "-c", program.replace("PORT=", "exec env PORT=")], cwd=folder) as process:
        try:
            wait_until(lambda: is_listening(f"http://127.0.0.1:{port}/"))
            yield
        finally:
            process.terminate()


def pasted(program: str, folder: Path) -> bytes:
    return subprocess.run(["bash", "-c", program], cwd=folder, check=True, capture_output=True, timeout=30).stdout
