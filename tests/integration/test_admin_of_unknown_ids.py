"""An id that nothing has, or that could be nothing's, is no server error, wherever the admin takes one."""

from collections.abc import Iterator
from itertools import cycle

import pytest
from django.contrib import admin as site
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.db.models import Model
from django.test import Client
from django.urls import reverse

from subscriptions.models import Subscription
from tests import factories

pytestmark = pytest.mark.django_db

UNKNOWN = ("abc", "9" * 20, "9" * 5000, "_31", "½")
"""No number, one too large for the database, one too long to be read, what the admin's addresses quote, no digit."""
MODELS = [*site.site._registry]
DJANGOS_OWN = ("change/", "history/", "delete/")
NEW_REPLAY = "/admin/delivery/replay/new/"


def name_of(model: type[Model]) -> str:
    return model._meta.label_lower


def root_of(model: type[Model]) -> str:
    return reverse(f"admin:{model._meta.app_label}_{model._meta.model_name}_changelist")


def actions_on_one() -> Iterator[str]:
    """Return the addresses of what the pages of rows offer, without the rows' ids."""
    for model, one in site.site._registry.items():
        paths = (str(known.pattern).partition("<path:object_id>/")[2] for known in one.get_urls())
        yield from (root_of(model) + "{}/" + path for path in paths if path and path not in DJANGOS_OWN)


@pytest.mark.parametrize("page", ["change", "history", "delete"])
@pytest.mark.parametrize("model", MODELS, ids=name_of)
def test_a_page_of_what_does_not_exist_leads_away_or_is_refused(admin: Client, model: type[Model], page: str) -> None:
    for unknown, method in zip(UNKNOWN, cycle(("GET", "POST")), strict=False):
        answer = admin.generic(method, f"{root_of(model)}{unknown}/{page}/")
        assert answer.status_code in {302, 403, 404}, (method, unknown)


def test_whoever_asks_for_what_does_not_exist_is_told(admin: Client) -> None:
    answer = admin.get("/admin/subscriptions/subscription/abc/change/", follow=True)
    assert "subscription with ID “abc”" in answer.content.decode()


@pytest.mark.parametrize("action", [*actions_on_one()])
def test_an_action_on_what_does_not_exist_finds_nothing(admin: Client, action: str) -> None:
    for unknown in UNKNOWN:
        assert admin.post(action.format(unknown), {"_form_submitted": "on"}).status_code == 404, unknown
    assert admin.get(action.format(UNKNOWN[0]), headers={"HX-Request": "true"}).status_code in {200, 404}


@pytest.mark.parametrize("model", MODELS, ids=name_of)
def test_a_list_narrowed_by_what_does_not_exist_shows_nothing_of_it(admin: Client, model: type[Model]) -> None:
    links = {field.name for field in model._meta.get_fields() if field.is_relation and not field.auto_created}
    names = [*(f"{link}__id__exact" for link in links), "message__id", "q"]
    for name, unknown in {*zip(names, cycle(UNKNOWN), strict=False), *zip(cycle(names), UNKNOWN, strict=False)}:
        shown = admin.get(root_of(model), {name: unknown})
        assert shown.status_code in {200, 400} or shown.get("Location", "").endswith("?e=1"), (name, unknown)


@pytest.mark.parametrize("model", MODELS, ids=name_of)
def test_what_is_chosen_in_a_list_and_cannot_exist_is_refused(admin: Client, model: type[Model]) -> None:
    factories.subscription()
    for action in site.site._registry[model].actions or ():
        for unknown in UNKNOWN:
            chosen = {"action": action, ACTION_CHECKBOX_NAME: [unknown], "confirmed": "yes"}
            assert admin.post(root_of(model), chosen).status_code in {200, 302, 400}, (action, unknown)


@pytest.mark.parametrize("field", ["subscriber", "subscription", "event_type"])
@pytest.mark.parametrize("unknown", UNKNOWN)
def test_a_replay_of_what_does_not_exist_is_an_error_of_the_form(admin: Client, field: str, unknown: str) -> None:
    answer = admin.post(NEW_REPLAY, {"statuses": ["REJECTED"], field: unknown})
    assert (answer.status_code, [*answer.context["form"].errors][:1]) == (200, [field])
    assert admin.get(NEW_REPLAY, {field: unknown}).status_code == 200


@pytest.mark.parametrize("unknown", UNKNOWN)
def test_the_filter_lab_takes_what_does_not_exist(admin: Client, unknown: str) -> None:
    lab = reverse("admin:delivery_message_filter_lab")
    for field in ("event_type", "message", "subscription"):
        assert admin.get(lab, {field: unknown}).status_code in {200, 404}
        assert admin.post(lab, {field: unknown}).status_code == 200
    assert admin.get(lab, {"message": unknown, "event_type": unknown}).status_code in {200, 404}


@pytest.mark.parametrize("unknown", UNKNOWN)
@pytest.mark.parametrize(
    ("model", "field"),
    [
        ("subscription", "subscriber"),
        ("subscription", "event_type"),
        ("subscription", "retry_policy"),
        ("apikey", "publisher"),
        ("apikey", "subscriber"),
        ("publisher", "event_types"),
    ],
)
def test_a_form_of_what_is_configured_names_what_does_not_exist(
    admin: Client, model: str, field: str, unknown: str
) -> None:
    address = f"/admin/subscriptions/{model}/add/"
    answer = admin.post(address, {field: unknown})
    assert answer.status_code == 200
    assert field in answer.context["adminform"].form.errors
    assert admin.get(address, {field: unknown}).status_code == 200
    assert not Subscription.objects.exists()
