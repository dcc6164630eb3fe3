"""Bad input and unknown ids in the admin, and its navigation."""

from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import cycle, product
from typing import Any

import pytest
from django.contrib import admin as site
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.admin.models import LogEntry
from django.db.models import Model
from django.forms import ModelForm
from django.test import Client
from django.urls import reverse

from broker_project.navigation import FOLDED_UP, GROUPS
from delivery.models import Message
from subscriptions.models import ApiKey, EventKind, EventType, Publisher, RetryPolicy, Subscriber, Subscription
from tests.support import factories
from tests.support.admin import browser_with
from tests.support.api import Answer
from tests.support.bad_input.rows import BROKEN_ENDPOINTS, BROKEN_FILTERS, BROKEN_SCRIPTS, NAMES, PRIVATE

pytestmark = pytest.mark.django_db

CONFIGURED: tuple[type[Model], ...] = (EventType, Publisher, Subscriber, Subscription, RetryPolicy)
DEEP = "[" * 2000 + "]" * 2000
STORED: tuple[type[Model], ...] = (*CONFIGURED, ApiKey, LogEntry)

UNKNOWN = ("abc", "9" * 20, "9" * 5000, "_31", "½")
"""No number, one too large for the database, one too long to be read, what the admin's addresses quote, no digit."""
MODELS = [*site.site._registry]
DJANGOS_OWN = ("change/", "history/", "delete/")
BAD = ("a\0b", "9" * 5000)
NEW_REPLAY = "/admin/delivery/replay/new/"

LINKS = (
    *(("subscription", field) for field in ("subscriber", "event_type", "retry_policy")),
    *(("apikey", "publisher"), ("apikey", "subscriber"), ("publisher", "event_types")),
)
REPLAYED = ("subscriber", "subscription", "event_type")
"""Fields of forms that take the id of something."""

ANYWHERE = {
    "NUL": "a\0b",
    "a lone surrogate": "\\ud800",
    "2,000 levels": DEEP,
    "5,000 digits": "9" * 5000,
    "a very long text": "x" * 200_000,
    "an emoji": "\U0001f600",
    "NaN": "NaN",
    "Infinity": "Infinity",
    "1e400": "1e400",
    "a date": "2026-13-45",
}
IN_JSON = {
    **{what: ANYWHERE[what] for what in ("2,000 levels", "5,000 digits", "NaN", "Infinity", "1e400")},
    "NUL": '{"a": "\\u0000"}',
    "NUL as a key": '{"\\u0000": "a"}',
    "a lone surrogate": '{"a": "\\ud800"}',
    "a lone surrogate as a key": '{"\\ud800": "a"}',
    "a raw NUL": '{"a": "\0"}',
    "a list": '["a"]',
    "a text": '"a"',
    "a number": "5",
    "true": "true",
    "truncated": '{"a": ',
    "something after the end": "{} x",
    "900 levels": '{"a": ' * 900 + "1" + "}" * 900,
    "a number of 5,000 digits inside": '{"a": ' + "9" * 5000 + "}",
}
OF_FIELDS = {
    "endpoint": (*BROKEN_ENDPOINTS, *(f"http://{host}/" for host in PRIVATE)),
    "filter": tuple(BROKEN_FILTERS.values()),
    "script": tuple(BROKEN_SCRIPTS.values()),
    "name": tuple(name for name in NAMES if name.strip() == name),
}
"""What the API refuses of these; a browser's blanks and line ends at either end are left off by every form."""


@pytest.fixture
def there() -> dict[type[Model], Model]:
    """Return one of each that can be configured."""
    wanted = factories.subscription()
    event_type, publisher = factories.event_type("Order.Paid"), factories.publisher("shop")
    policy = factories.retry_policy("own")
    owned: dict[type[Model], Model] = {Subscriber: wanted.subscriber, Subscription: wanted, RetryPolicy: policy}
    return {EventType: event_type, Publisher: publisher, **owned}


def root_of(model: type[Model]) -> str:
    return reverse(f"admin:{model._meta.app_label}_{model._meta.model_name}_changelist")


def page_of(one: Model) -> str:
    return f"{root_of(type(one))}{one.pk}/change/"


def form_at(admin: Client, page: str) -> "ModelForm[Model]":
    """Return the form that a page shows."""
    form: ModelForm[Model] = admin.get(page).context["adminform"].form
    return form


def filled(form: "ModelForm[Model]") -> dict[str, object]:
    """Return what a browser would send of a form that nobody has touched."""
    shown = {name: bound.value() for bound in form for name in (bound.html_name, bound.html_initial_name)}
    return {name: value for name, value in shown.items() if value is not None and value is not False}


def stored() -> list[object]:
    """Return all that is configured, and what was done in the admin."""
    return [[*model._default_manager.order_by("pk").values()] for model in STORED]


@pytest.mark.parametrize("model", CONFIGURED, ids=lambda model: model.__name__)
def test_no_field_causes_a_server_error(admin: Client, model: type[Model], there: dict[type[Model], Model]) -> None:
    pages = (page_of(there[model]), f"{root_of(model)}add/")
    form = form_at(admin, pages[0])
    for value, address in zip(ANYWHERE.values(), cycle(pages), strict=False):
        answer = admin.post(address, dict.fromkeys(form.fields, value))
        assert (answer.status_code, bool(answer.context["adminform"].form.errors)) == (200, True), value[:60]


@pytest.mark.parametrize(("model", "name"), [(EventType, "schema"), (Subscriber, "headers"), (Subscription, "headers")])
def test_forms_refuse_as_the_api(admin: Client, model: type[Model], name: str, there: dict[type[Model], Model]) -> None:
    refusing = refusals_of(form_at(admin, page_of(there[model])), there[model])
    assert refusing() == set()
    assert [what for what, value in IN_JSON.items() if name not in refusing(**{name: value})] == []


def test_a_form_shows_refused_json_again(admin: Client, there: dict[type[Model], Model]) -> None:
    page = page_of(there[Subscriber])
    form, before = form_at(admin, page), stored()
    answers = {what: admin.post(page, {**filled(form), "headers": value}) for what, value in IN_JSON.items()}
    assert {what for what, answer in answers.items() if refused(answer) != {"headers"}} == set()
    assert stored() == before


@pytest.mark.parametrize("name", ["endpoint", "filter", "script"])
def test_forms_of_subscriptions_refuse_likewise(admin: Client, name: str, there: dict[type[Model], Model]) -> None:
    refusing = refusals_of(form_at(admin, page_of(there[Subscription])), there[Subscription])
    assert refusing() == set()
    values = [value for value in OF_FIELDS[name] if value.strip() == value]
    assert [value for value in values if name not in refusing(**{name: value})] == []


@pytest.mark.parametrize("model", [EventType, Publisher, Subscriber, RetryPolicy], ids=lambda model: model.__name__)
def test_names_unfit_for_a_url_are_refused(admin: Client, model: type[Model], there: dict[type[Model], Model]) -> None:
    page = f"{root_of(model)}add/"
    form, before = form_at(admin, page), stored()
    refusing, names = refusals_of(form), [name for name in OF_FIELDS["name"] if name]
    assert [name for name in names if "name" not in refusing(name=name)] == []
    assert "name" in refused(admin.post(page, {**filled(form), "name": names[0]}))
    assert stored() == before


def refusals_of(form: "ModelForm[Model]", one: Model | None = None) -> Callable[..., set[str]]:
    """Return what tells which fields a form refuses, of itself with some changes, about this one or a new one."""
    untouched = filled(form)

    def refusing(**changes: str) -> set[str]:
        again = one and type(one)._default_manager.get(pk=one.pk)
        return set(type(form)({**untouched, **changes}, instance=again).errors)

    return refusing


def refused(answer: Answer) -> set[str]:
    """Return the fields of which the page of a form says that they are wrong."""
    assert answer.status_code == 200
    return set(answer.context["adminform"].form.errors)


@pytest.mark.parametrize("model", [*site.site._registry], ids=lambda model: model._meta.label_lower)
def test_no_filter_value_is_a_server_error(admin: Client, model: type[Model]) -> None:
    filters = [parameter_of(one) for one in site.site._registry[model].list_filter]
    names = ["q", "p", "o", *filters]
    for name, value in {*zip(names, cycle(BAD), strict=False), *zip(("q", "p"), reversed(BAD), strict=True)}:
        answer = admin.get(root_of(model), {name: value})
        assert answer.status_code in {200, 302, 400}, (name, value[:40])


def parameter_of(one: object) -> str:
    """Return what a filter is called in an address, as far as its declaration tells."""
    return str(one[0] if isinstance(one, tuple) else getattr(one, "parameter_name", one))


@pytest.mark.parametrize("kind", EventKind)
def test_an_incomplete_subscription_is_an_error_of_the_form(admin: Client, kind: EventKind) -> None:
    wanted, before = factories.subscription(event_type=factories.event_type(kind=kind)), LogEntry.objects.count()
    for form in ({}, {"event_type": "a"}, {"event_type": "9" * 30, "subscriber": "\0"}, {"subscriber": str(wanted.pk)}):
        answer = admin.post(f"{root_of(Subscription)}add/", form)
        assert (answer.status_code, bool(answer.context["adminform"].form.errors)) == (200, True)
    assert (Subscription.objects.count(), LogEntry.objects.count()) == (1, before)


def name_of(model: type[Model]) -> str:
    return model._meta.label_lower


def actions_on_one() -> Iterator[str]:
    """Return the addresses of what the pages of rows offer, without the rows' ids."""
    for model, one in site.site._registry.items():
        paths = (str(known.pattern).partition("<path:object_id>/")[2] for known in one.get_urls())
        yield from (root_of(model) + "{}/" + path for path in paths if path and path not in DJANGOS_OWN)


@pytest.mark.parametrize("model", MODELS, ids=name_of)
def test_a_page_of_an_unknown_id_redirects_or_is_refused(admin: Client, model: type[Model]) -> None:
    pages = product(("change", "history", "delete"), ("GET", "POST"))
    for (page, method), unknown in zip(pages, cycle(UNKNOWN), strict=False):
        answer = admin.generic(method, f"{root_of(model)}{unknown}/{page}/")
        assert answer.status_code in {302, 403, 404}, (page, method, unknown)


def test_an_unknown_id_is_named(admin: Client) -> None:
    answer = admin.get("/admin/subscriptions/subscription/abc/change/", follow=True)
    assert "subscription with ID “abc”" in answer.content.decode()


@pytest.mark.parametrize("action", [*actions_on_one()])
def test_an_action_on_an_unknown_id_is_404(admin: Client, action: str) -> None:
    for unknown in UNKNOWN:
        assert admin.post(action.format(unknown), {"_form_submitted": "on"}).status_code == 404, unknown
    assert admin.get(action.format(UNKNOWN[0]), headers={"HX-Request": "true"}).status_code in {200, 404}


@pytest.mark.parametrize("model", MODELS, ids=name_of)
def test_a_list_filtered_by_an_unknown_id_is_no_server_error(admin: Client, model: type[Model]) -> None:
    links = {field.name for field in model._meta.get_fields() if field.is_relation and not field.auto_created}
    names = [*(f"{link}__id__exact" for link in links), "message__id"]
    for name, unknown in {*zip(names, cycle(UNKNOWN), strict=False), *zip(cycle(names), UNKNOWN, strict=False)}:
        shown = admin.get(root_of(model), {name: unknown})
        assert shown.status_code in {200, 400} or shown.get("Location", "").endswith("?e=1"), (name, unknown)


@pytest.mark.parametrize("model", MODELS, ids=name_of)
def test_chosen_ids_that_no_row_can_have_are_refused(admin: Client, model: type[Model]) -> None:
    factories.subscription()
    for action in site.site._registry[model].actions or ():
        for unknown in UNKNOWN:
            chosen = {"action": action, ACTION_CHECKBOX_NAME: [unknown], "confirmed": "yes"}
            assert admin.post(root_of(model), chosen).status_code in {200, 302, 400}, (action, unknown)


@pytest.mark.parametrize(("unknown", "field"), [*zip(UNKNOWN, cycle(REPLAYED), strict=False)])
def test_a_replay_of_an_unknown_id_is_an_error_of_the_form(admin: Client, field: str, unknown: str) -> None:
    answer = admin.post(NEW_REPLAY, {"statuses": ["REJECTED"], field: unknown})
    assert (answer.status_code, [*answer.context["form"].errors][:1]) == (200, [field])
    assert admin.get(NEW_REPLAY, {field: unknown}).status_code == 200


@pytest.mark.parametrize(
    ("unknown", "field"), [*zip(UNKNOWN, cycle(("event_type", "message", "subscription")), strict=False)]
)
def test_the_filter_lab_accepts_unknown_ids(admin: Client, unknown: str, field: str) -> None:
    lab = reverse("admin:delivery_message_filter_lab")
    assert admin.get(lab, {field: unknown}).status_code in {200, 404}
    assert admin.post(lab, {field: unknown}).status_code == 200
    assert admin.get(lab, {"message": unknown, "event_type": unknown}).status_code in {200, 404}


def test_the_dry_run_accepts_unknown_values(admin: Client) -> None:
    page = reverse("admin:delivery_message_dry_run")
    assert {admin.get(page, {"event_type": unknown}).status_code for unknown in UNKNOWN} == {200}
    known = {"event_type": factories.event_type().pk, "body": "{}"}
    fields = ("event_type", "publisher", "after", "decision", "headers", "destination", "filter_string")
    for field, unknown in zip(fields, cycle(UNKNOWN), strict=False):
        assert admin.post(page, {**known, field: unknown}).status_code == 200, (field, unknown)
    for after in (f"{'9' * 20}-1", f"1-{'9' * 20}"):
        answer = admin.post(page, {**known, "after": after})
        assert (answer.status_code, [*answer.context["form"].errors]) == (200, ["after"]), after


@pytest.mark.parametrize(
    ("model", "field", "unknown"),
    [(*field, unknown) for field, unknown in zip(LINKS, cycle(UNKNOWN), strict=False)],
)
def test_a_form_names_fields_with_unknown_ids(admin: Client, model: str, field: str, unknown: str) -> None:
    address = f"/admin/subscriptions/{model}/add/"
    answer = admin.post(address, {field: unknown})
    assert answer.status_code == 200
    assert field in answer.context["adminform"].form.errors
    assert admin.get(address, {field: unknown}).status_code == 200
    assert not Subscription.objects.exists()


def test_pages_about_many_subscriptions_list_a_hundred_and_take_as_many_queries_as_for_few(
    admin: Client, django_assert_max_num_queries: Any
) -> None:
    one = factories.subscription()
    message = {"event_type": one.event_type, "body": b"{}", "size": 2, "content_type": "application/json"}
    pk = Message.objects.create(**message, headers=[], outcome="ROUTED", published_at="2026-01-01T00:00Z").pk
    Subscription.objects.bulk_create(
        Subscription(subscriber=one.subscriber, event_type=one.event_type, endpoint=f"http://127.0.0.1:9/{number}")
        for number in range(120)
    )
    with django_assert_max_num_queries(25):
        explained = admin.get(f"/admin/delivery/message/{pk}/change/").text
    with django_assert_max_num_queries(25):
        prevented = admin.get(f"/admin/subscriptions/eventtype/{one.event_type_id}/delete/").text
    assert (explained.count("was made after this message"), "and more than these 100" in explained) == (100, True)
    assert (prevented.count("Subscription: "), "and more" in prevented) == (100, True)


def test_every_page_in_the_side_bar_opens(admin: Client) -> None:
    links = [item["link"] for group in admin.get("/admin/").context["sidebar_navigation"] for item in group["items"]]
    assert len(links) == 1 + sum(map(len, {**GROUPS, **FOLDED_UP}.values()))
    assert {link: admin.get(link).status_code for link in links} == dict.fromkeys(links, 200)


def test_a_list_without_rows_says_what_would_be_in_it_and_what_to_do(admin: Client) -> None:
    assert [name_of(model) for model, pages in site.site._registry.items() if not hasattr(pages, "when_empty")] == []
    assert "To publish one, send an event to the API" in admin.get("/admin/delivery/message/").text


def test_pages_have_the_styles_that_the_theme_lacks(admin: Client) -> None:
    styles = "/static/broker_project/admin.css"
    assert f'<link href="{styles}" rel="stylesheet">' in admin.get("/admin/").text
    with closing(admin.get(styles)) as answer:
        assert (answer.status_code, answer["Content-Type"]) == (200, 'text/css; charset="utf-8"')


@pytest.mark.parametrize("permissions", [(), ("subscriptions.view_subscriber",)], ids=["none", "to look"])
def test_a_refusal_says_whom_to_ask_and_links_back(permissions: tuple[str, ...]) -> None:
    refused = browser_with(*permissions).get("/admin/subscriptions/subscriber/add/")
    assert (refused.status_code, refused["Cache-Control"]) == (403, "no-store")
    for told in (
        "You do not have permission to do this",
        "Nothing has been changed.",
        "Superusers assign roles and permissions: ask one.",
        'href="/admin/"',
    ):
        assert told in refused.text
