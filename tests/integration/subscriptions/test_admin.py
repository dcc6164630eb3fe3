"""Configuration in the admin, and the audit log of changes over the API."""

import datetime as dt
import html
import re
from collections.abc import Callable
from typing import Any, Final

import pytest
from django.contrib.admin.models import CHANGE, LogEntry
from django.contrib.auth.models import User
from django.contrib.sessions.models import Session
from django.db import connection, transaction
from django.test import Client
from django.urls import resolve
from django.utils import timezone
from django.utils.html import strip_tags

from broker_project import admin as history
from broker_project.core.api.history import API_USER, KEPT, author_and_call, forget_old_changes
from broker_project.core.api.records import Audited
from broker_project.core.db import forget_connection
from broker_project.stack.load.wait import PATIENCE_SECONDS
from subscriptions import edit
from subscriptions.admin import configured
from subscriptions.admin.configured import CHANGED_MEANWHILE
from subscriptions.credentials.tokens import digest_of
from subscriptions.models import ApiKey, EventType, Publisher, Scope, Status, Subscriber, Subscription
from subscriptions.models.base import Versioned
from tests.support import factories
from tests.support.admin import SUBSCRIPTION_FORM, admin_user, form_shown, messages_of, save_form
from tests.support.api import Answer, client_of, client_with
from tests.support.database import another_connection
from tests.support.html_form import Form

pytestmark = pytest.mark.django_db

ROOT = "/admin/subscriptions"
CONFIRMED = {"confirmed": "yes"}
URL = "http://shop.example/"
JSON = "application/json"
ANY = {"If-Match": "*"}
STEPPING_IN: Final = {Scope.CONFIGURE, Scope.OPERATE, Scope.KEYS}
A_YEAR_ON: Final = timezone.now().replace(microsecond=0) + dt.timedelta(days=365)
PURGING: Final = "/api/v1/mailboxes/{name}/purge"
SOME: Final = {"{id}": "4711", "{name}": "some", "{event_type}": "Some.Type", "{token}": "some"}


def shown_once(answer: Answer) -> str:
    """Return the secret that an answer shows, which it leaves nowhere else."""
    (secret,) = re.findall(r'<code id="secret"[^>]*>([^<]+)</code>', answer.text)
    assert (answer.status_code, "no-store" in answer["Cache-Control"]) == (200, True)
    kept = [*answer.cookies.values(), *(one.get_decoded() for one in Session.objects.all()), *LogEntry.objects.values()]
    assert secret not in str(kept)
    return html.unescape(secret)


def run_chosen(client: Client, model: str, action: str, pks: list[int], **more: str) -> Answer:
    return client.post(f"{ROOT}/{model}/", {"action": action, "_selected_action": pks, **more}, follow=True)


def test_an_event_type_keeps_name_and_kind_while_its_description_changes(admin: Client) -> None:
    made = factories.event_type("Order.Paid", description="old")
    form = {"name": "Other", "kind": "QUEUE", "content_type": "text/plain", "description": "new", "sample": ""}
    save_form(admin, made, form_shown(admin, made) | form)
    now = EventType.objects.configured().get()
    seen = (now.name, now.kind, now.description, now.content_type, now.version)
    assert seen == ("Order.Paid", "TOPIC", "new", "text/plain", 2)


@pytest.mark.behaviour("1.11")
@pytest.mark.parametrize(
    ("make", "elsewhere", "here"),
    [
        (
            factories.subscription,
            {"filter": "$$->'Body' ? 'a'", "script": "a = 1\n"},
            {"endpoint": "http://a.example/"},
        ),
        (factories.subscription, {"headers": {"X-New": "a"}}, {"endpoint": "http://a.example/"}),
        (factories.subscriber, {"headers": {"X-New": "a"}, "mailbox_ordered": True}, {"description": "new"}),
        (factories.event_type, {"sample": "{}\n", "schema": {"type": "object"}}, {"description": "new"}),
        (factories.retry_policy, {"max_retries": 7, "on_exhausted": "FAIL", "schedule": [2.0]}, {"description": "new"}),
        (lambda: factories.api_key()[0], {"expires_at": A_YEAR_ON, "requests_per_minute": 7}, {"label": "new"}),
    ],
)
def test_a_stale_form_changes_only_what_its_user_changed(
    admin: Client, make: Callable[[], Versioned], elsewhere: dict[str, object], here: dict[str, str]
) -> None:
    row = make()
    form = form_shown(admin, row)
    edit.change(type(row)._default_manager.filter(pk=row.pk), changes=elsewhere)
    assert save_form(admin, row, form | here).status_code == 302
    now = type(row)._default_manager.get(pk=row.pk)
    assert {name: getattr(now, name) for name in elsewhere | here} == elsewhere | here
    (name,) = here
    assert LogEntry.objects.get().get_change_message() == f"Changed {name.capitalize()}."


def test_a_stale_form_keeps_the_links_that_were_set_elsewhere(admin: Client) -> None:
    made, paid = factories.publisher("till"), factories.event_type("Order.Paid")
    form = form_shown(admin, made)
    edit.change(Publisher.objects.filter(pk=made.pk), changes={"event_types": [paid]})
    assert save_form(admin, made, form | {"description": "new"}).status_code == 302
    now = Publisher.objects.get()
    assert (now.description, [*now.event_types.all()]) == ("new", [paid])


def test_the_second_change_of_the_same_field_is_refused_until_its_page_is_opened_again(admin: Client) -> None:
    made = factories.subscription(headers={"X-A": "tell-nobody"}, script="a = 1\n")
    form = form_shown(admin, made) | {"script": "a = 3", "endpoint": "http://a.example/"}
    edit.change(Subscription.objects.filter(pk=made.pk), changes={"script": "a = 2\n"})
    refused = save_form(admin, made, form)
    assert refused.context["adminform"].form.errors == {"script": [CHANGED_MEANWHILE]}
    again = save_form(admin, made, Form(refused.text).fields)
    assert again.context["adminform"].form.errors == {"script": [CHANGED_MEANWHILE]}
    assert (Subscription.objects.get().script, "tell-nobody" in refused.text) == ("a = 2\n", False)
    assert save_form(admin, made, form_shown(admin, made) | {"script": "a = 3"}).status_code == 302
    assert Subscription.objects.get().script == "a = 3"


def test_a_form_that_is_sent_twice_is_saved_once(admin: Client) -> None:
    made = factories.subscriber("shop")
    form = form_shown(admin, made) | {"description": "new"}
    assert [save_form(admin, made, form).status_code for _ in range(2)] == [302, 302]
    assert (Subscriber.objects.get().description, Subscriber.objects.get().version) == ("new", 2)


def test_an_action_on_one_asks_first_and_runs_by_post_only(admin: Client) -> None:
    made = factories.subscription()
    address = f"{ROOT}/subscription/{made.pk}/inactivate/"
    assert b"published until you activate it again is never delivered" in admin.get(address).content
    admin.post(address, {})
    assert Subscription.objects.get().status == "ACTIVE"
    done = admin.post(address, CONFIRMED, follow=True)
    assert (Subscription.objects.get().status, messages_of(done)) == ("INACTIVE", "The status is now INACTIVE.")
    assert LogEntry.objects.get().get_change_message() == "The status is now INACTIVE."


def test_a_dialog_opened_outside_its_page_leads_there(admin: Client) -> None:
    made = factories.subscription(status=Status.INACTIVE)
    page = f"{ROOT}/subscription/{made.pk}/"
    assert admin.get(f"{page}activate/").headers["Location"] == f"{page}change/"


def test_a_name_stands_as_it_is_on_the_way_to_its_page(admin: Client) -> None:
    made = factories.subscription(factories.subscriber("warehouse"), factories.event_type("Order.Paid"))
    head = admin.get(f"{ROOT}/subscription/{made.pk}/change/").text.partition('id="content"')[0]
    assert re.search(r">\s*warehouse ← Order.Paid\s*</a", head)
    assert re.search(r">\s*UTC\s*<", head), "the zone of all times"


def test_an_action_on_many_asks_first(admin: Client) -> None:
    pks = [factories.subscription().pk for _ in range(2)]
    asked = run_chosen(admin, "subscription", "inactivate_chosen", pks)
    assert asked.context["title"].startswith("Inactivate, and lose messages?")
    assert set(Subscription.objects.values_list("status", flat=True)) == {"ACTIVE"}
    done = run_chosen(admin, "subscription", "inactivate_chosen", pks, confirmed="yes")
    assert set(Subscription.objects.values_list("status", flat=True)) == {"INACTIVE"}
    assert messages_of(done) == "Done for 2."


def test_all_that_a_list_finds_is_asked_about_some_hundreds_at_a_time(
    admin: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(configured, "EACH_SECONDS", PATIENCE_SECONDS)
    one = factories.subscription(status=Status.INACTIVE)
    of_type = {"subscriber": one.subscriber, "event_type": one.event_type, "status": Status.INACTIVE}
    Subscription.objects.bulk_create(
        Subscription(**of_type, endpoint=f"http://127.0.0.1:9/{number}") for number in range(1_100)
    )
    kept = factories.subscription(status=Status.INACTIVE)
    found = f"{ROOT}/subscription/?event_type__id__exact={one.event_type_id}"
    page = {"action": "activate_chosen", "select_across": "1", "index": "0", "_selected_action": [one.pk]}
    asked, numbers, titles = admin.post(found, page), [], []
    while asked.status_code == 200:
        titles.append(asked.context["title"])
        numbers.append(Subscription.objects.filter(status=Status.ACTIVE).count())
        pks = re.findall(r'name="_selected_action" value="(\d+)"', asked.text)
        asked = admin.post(found, {**Form(asked.text).fields, "_selected_action": pks})
    assert numbers == [0, 500, 1000]
    assert [title.partition("order. ")[2] for title in titles] == [
        "You are asked about 601 more afterwards.",
        "You are asked about 101 more afterwards.",
        "",
    ]
    assert Subscription.objects.get(status=Status.INACTIVE) == kept
    assert messages_of(admin.get(asked.headers["Location"])) == "Done for 101."


def test_a_signing_secret_is_shown_when_it_is_made_and_never_again(admin: Client) -> None:
    shop, paid = factories.subscriber("shop"), factories.event_type("Order.Paid")
    form = {"subscriber": shop.pk, "event_type": paid.pk, "endpoint": "http://shop.example/"}
    added = admin.post(
        f"{ROOT}/subscription/add/", {**SUBSCRIPTION_FORM, **form, "header_filter_string": "", "status": "ACTIVE"}
    )
    made = Subscription.objects.get()
    assert shown_once(added) == made.signing_secret
    address = f"{ROOT}/subscription/{made.pk}/rotate_secret/"
    assert b"Rotate the signing secret?" in admin.get(address).content
    rotated = admin.post(address, {**CONFIRMED, "hours": 24})
    secret = Subscription.objects.get().signing_secret
    assert secret != made.signing_secret
    assert shown_once(rotated) == secret
    for page in (f"{ROOT}/subscription/", f"{ROOT}/subscription/{made.pk}/change/"):
        assert b"whsec_" not in admin.get(page).content
    assert "whsec_" not in "".join(entry.change_message for entry in LogEntry.objects.all())


@pytest.mark.behaviour("1.2")
def test_a_token_is_shown_when_it_is_issued_and_never_again(admin: Client) -> None:
    till = factories.publisher("till")
    form = {"kind": "PUBLISHER", "publisher": till.pk, "subscriber": "", "label": "rack 3"}
    issued = admin.post(f"{ROOT}/apikey/add/", {**form, "expires_at_0": "", "expires_at_1": ""})
    token = shown_once(issued)
    key = ApiKey.objects.get(digest=digest_of(token))
    assert (key.publisher, key.label, key.prefix) == (till, "rack 3", token[:12])
    for page in (f"{ROOT}/apikey/", f"{ROOT}/apikey/{key.pk}/change/"):
        assert token.encode() not in admin.get(page).content


def test_a_key_is_revoked_and_never_deleted(admin: Client) -> None:
    key, _ = factories.api_key()
    admin.post(f"{ROOT}/apikey/{key.pk}/revoke/", {"_form_submitted": "on"})
    key.refresh_from_db()
    assert (key.revoked_at is not None, key.version) == (True, 2)
    assert admin.post(f"{ROOT}/apikey/{key.pk}/delete/", {"post": "yes"}).status_code == 403


@pytest.mark.behaviour("1.2")
def test_an_event_type_that_limits_a_publisher_is_not_deleted(admin: Client) -> None:
    made = factories.event_type("Order.Paid")
    factories.publisher("till", event_types=[made])
    refused = admin.post(f"{ROOT}/eventtype/{made.pk}/delete/", {"post": "yes"}, follow=True)
    assert messages_of(refused) == "Not deleted. till may publish it by name; take it off their lists first."


def test_a_subscriber_is_deleted_with_its_keys_and_line(admin: Client) -> None:
    made = factories.subscriber()
    factories.api_key(made)
    admin.post(f"{ROOT}/subscriber/{made.pk}/delete/", {"post": "yes"})
    assert (Subscriber.objects.count(), ApiKey.objects.count()) == (0, 0)


def test_a_publishers_event_types_change_with_its_version(admin: Client) -> None:
    made, paid = factories.publisher("till"), factories.event_type("Order.Paid")
    save_form(admin, made, form_shown(admin, made) | {"event_types": [paid.pk]})
    now = Publisher.objects.get()
    assert (list(now.event_types.all()), now.version) == ([paid], 2)


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("page", ["publisher/{}/change/", "subscription/set-up/"])
def test_a_reference_to_what_is_deleted_in_the_same_instant_is_refused(admin: Client, page: str) -> None:
    till, paid = factories.publisher("till"), factories.event_type("Order.Paid")
    form = {"name": "till", "event_types": [paid.pk], "event_type": "Order.Paid", "subscriber": "shop", "endpoint": URL}

    def another_admin_deletes_it(execute: Any, sql: str, *rest: Any) -> Any:
        if sql.startswith(('INSERT INTO "subscriptions_publisher_', 'INSERT INTO "subscriptions_subscription"')):
            with another_connection() as elsewhere:
                elsewhere.execute("DELETE FROM subscriptions_eventtype WHERE id = %s", [paid.pk])
        return execute(sql, *rest)

    with connection.execute_wrapper(another_admin_deletes_it):
        answer = admin.post(f"{ROOT}/{page.format(till.pk)}", form, follow=True)
    assert "Something that it refers to was deleted." in answer.text
    assert (Publisher.objects.get().version, Subscriber.objects.count(), LogEntry.objects.count()) == (1, 0, 0)


@pytest.mark.parametrize(
    ("page", "title"),
    [
        ("/admin/analytics/run/", "Runs"),
        ("/admin/analytics/run/summaries/", "Summaries"),
        ("/admin/delivery/message/filter-lab/", "Filter lab"),
        ("/admin/delivery/message/dry-run/", "Dry run"),
        ("/admin/subscriptions/subscriber/add/", "Subscribers"),
        ("/admin/", "Dashboard"),
    ],
)
def test_the_side_bar_marks_the_current_page(admin: Client, page: str, title: str) -> None:
    bar = admin.get(page).context["sidebar_navigation"]
    marked = [item["title"] for group in bar for item in group["items"] if item["active"]]
    assert marked == [title]


def audit_entries(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    events = [record.msg for record in caplog.records if isinstance(record.msg, dict)]
    kept = ("key", "label", "method", "path", "fields", "created")
    return [
        {name: event[name] for name in kept if name in event} for event in events if event["event"] == "api.changed"
    ]


def test_the_audit_log_has_who_changed_which_fields_without_values(caplog: pytest.LogCaptureFixture) -> None:
    key, token = factories.api_key()
    client = client_with(token)
    with caplog.at_level("INFO"):
        made = {"name": "shop", "headers": {"Authorization": "Bearer hidden"}}
        assert client.post("/api/v1/subscribers", made, JSON).status_code == 201
        assert client.patch("/api/v1/subscribers/shop", {"description": "x"}, headers=ANY).status_code == 200
        assert client.post("/api/v1/subscribers/shop/inactivate", headers=ANY).status_code == 200
        assert client.delete("/api/v1/subscribers/shop", headers=ANY).status_code == 204
    by = {"key": key.prefix, "label": ""}
    assert audit_entries(caplog) == [
        {**by, "method": "POST", "path": "/api/v1/subscribers", "fields": ["headers", "name"], "created": "shop"},
        {**by, "method": "PATCH", "path": "/api/v1/subscribers/shop", "fields": ["description"]},
        {**by, "method": "POST", "path": "/api/v1/subscribers/shop/inactivate", "fields": []},
        {**by, "method": "DELETE", "path": "/api/v1/subscribers/shop", "fields": []},
    ]
    assert "hidden" not in caplog.text
    assert token not in caplog.text


@pytest.mark.django_db(transaction=True)
def test_a_change_whose_database_is_lost_before_it_is_noted_is_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    key, token = factories.api_key(label="deploy")
    factories.subscriber("shop")
    session = connection.connection.info.backend_pid

    def lose_database() -> None:
        with another_connection() as elsewhere:
            elsewhere.execute("SELECT pg_terminate_backend(%s, 10000)", [session])

    def lost_once_changed(execute: Any, sql: str, *rest: Any) -> Any:
        if sql.startswith('UPDATE "subscriptions_subscriber"'):
            transaction.on_commit(lose_database)
        return execute(sql, *rest)

    with caplog.at_level("INFO"), connection.execute_wrapper(lost_once_changed):
        changed = client_with(token).patch("/api/v1/subscribers/shop", {"description": "x"}, headers=ANY)
    forget_connection()
    assert (changed.status_code, changed.json()["description"]) == (200, "x")
    call = {"method": "PATCH", "path": "/api/v1/subscribers/shop", "fields": ["description"]}
    assert audit_entries(caplog) == [{"key": key.prefix, "label": "deploy", **call}]
    assert "api.change_not_in_history" in caplog.text
    assert not LogEntry.objects.exists()


def test_a_label_is_not_taken_for_a_call() -> None:
    by = "brk_m_1a2b (ops): POST /api/v1/subscribers/shop/pause: x)"
    call = "PATCH /api/v1/subscriptions/3: filter"
    assert author_and_call(f"{by}: {call}") == (by, call)


@pytest.mark.behaviour("1.11")
def test_the_history_has_what_people_and_keys_changed(admin: Client) -> None:
    key, token = factories.api_key(label="deploy")
    client, shop = client_with(token), factories.subscriber("shop_7")
    store = {"name": "store", "headers": {"X-A": "tell-nobody"}}
    assert client.post("/api/v1/subscribers", store, JSON).status_code == 201
    assert client.patch("/api/v1/subscribers/shop_7", {"description": "x"}, headers=ANY).status_code == 200
    wanted = factories.subscription(shop)
    assert client.post(f"/api/v1/subscriptions/{wanted.pk}/pause", {"reason": "now"}, JSON).status_code == 200
    assert client.delete("/api/v1/subscribers/store", headers=ANY).status_code == 204
    admin.post(f"{ROOT}/subscriber/{shop.pk}/inactivate/", CONFIRMED)
    page = admin.get("/admin/accounts/change/")
    shown = [
        (str(history._who(one)), strip_tags(str(history._about(one))), history._done(one))
        for one in page.context["cl"].result_list
    ]
    by = f"key {key.prefix} (deploy)"
    assert shown == [
        ("admin", "Subscriber: shop_7", "The status is now INACTIVE."),
        (by, "Subscriber: store", "DELETE /api/v1/subscribers/store"),
        (by, f"Subscription: {wanted.pk}", f"POST /api/v1/subscriptions/{wanted.pk}/pause: reason"),
        (by, "Subscriber: shop_7", "PATCH /api/v1/subscribers/shop_7: description"),
        (by, "Subscriber: store", "POST /api/v1/subscribers: headers, name"),
    ]
    assert "tell-nobody" not in page.text
    of_key = admin.get(f"/admin/accounts/change/?key={key.prefix}")
    assert len(of_key.context["cl"].result_list) == 4
    assert "PATCH /api/v1/subscribers/shop_7" in admin.get(f"{ROOT}/subscriber/{shop.pk}/history/").text
    assert not User.objects.get(username=API_USER).is_active


@pytest.mark.behaviour("1.11")
def test_a_rename_is_in_the_history_of_what_was_renamed(admin: Client) -> None:
    shop = factories.subscriber("shop")
    assert client_of().patch("/api/v1/subscribers/shop", {"name": "store"}).status_code == 200
    page = admin.get(f"{ROOT}/subscriber/{shop.pk}/history/").text
    assert "PATCH /api/v1/subscribers/shop: name" in page


def test_changes_over_the_api_are_forgotten_after_a_time_and_those_of_people_never(management: Client) -> None:
    management.post("/api/v1/subscribers", {"name": "shop"}, JSON)
    LogEntry.objects.create(user=admin_user("bob"), action_flag=CHANGE, object_repr="one")
    LogEntry.objects.update(action_time=timezone.now() - KEPT)
    management.post("/api/v1/subscribers", {"name": "store"}, JSON)
    forget_old_changes(timezone.now())
    assert {*LogEntry.objects.values_list("object_repr", flat=True)} == {"one", "store"}


def test_reads_refusals_publishing_and_trials_are_not_in_the_audit_log(
    caplog: pytest.LogCaptureFixture, management: Client
) -> None:
    event_type = factories.event_type()
    with caplog.at_level("INFO"):
        management.get("/api/v1/subscribers")
        assert management.post("/api/v1/subscribers", {"nonsense": 1}).status_code == 400
        assert Client().post("/api/v1/subscribers", {"name": "shop"}, JSON).status_code == 401
        assert management.post(f"/api/v1/events/{event_type.name}", {"a": 1}).status_code == 202
        assert management.post("/api/v1/scripts/test", {}).status_code == 400
    assert audit_entries(caplog) == []


def is_messages_of(path: str) -> bool:
    for name, value in SOME.items():
        path = path.replace(name, value)
    view: Any = resolve(path).func
    return issubclass(view.cls, Audited)


def test_every_changing_operation_and_no_other_is_in_the_audit_log() -> None:
    operations = {
        (method, path): {scope for one in operation.get("security", ()) for scope in one["apiKey"]}
        for path, methods in Client().get("/api/v1/openapi.json").json()["paths"].items()
        for method, operation in methods.items()
        if method != "get"
    }
    wanted = {one for one, scopes in operations.items() if scopes & STEPPING_IN or one[1] == PURGING}
    assert len(wanted) > 30
    assert {one for one in operations if is_messages_of(one[1])} == wanted


def test_operations_are_in_the_audit_log_and_dry_runs_are_not(caplog: pytest.LogCaptureFixture) -> None:
    key, token = factories.api_key()
    client, one = client_with(token), factories.subscription()
    asked = {"subscription": one.pk}
    with caplog.at_level("INFO"):
        assert client.post("/api/v1/replays", {**asked, "dry_run": True}).status_code == 200
        answer = client.post("/api/v1/replays", {**asked, "dry_run": False})
        assert client.post("/api/v1/event-type-file?dry_run=true", {"event_types": []}).status_code == 200
        assert client.post(f"/api/v1/subscriptions/{one.pk}/pause", {"reason": "hidden"}).status_code == 200
        assert client.post(f"/api/v1/subscriptions/{one.pk}/cancel-deliveries").status_code == 200
    by = {"key": key.prefix, "label": "", "method": "POST"}
    assert audit_entries(caplog) == [
        {**by, "path": "/api/v1/replays", "fields": ["dry_run", "subscription"], "created": str(answer.json()["id"])},
        {**by, "path": f"/api/v1/subscriptions/{one.pk}/pause", "fields": ["reason"]},
        {**by, "path": f"/api/v1/subscriptions/{one.pk}/cancel-deliveries", "fields": []},
    ]
    assert "hidden" not in caplog.text
