"""Who may do what in the admin: every page and action, with every permission that opens one, and without."""

from typing import Any, Final

import pytest
from django.contrib.admin.models import LogEntry
from django.http import HttpResponse
from django.test import Client
from django.utils import timezone

from broker_project.accounts import views as account_views
from delivery.models import Delivery, Line, Replay
from subscriptions.models import ApiKey, Subscription
from tests.support.admin import (
    admin_actions,
    admin_models,
    browser_with,
    model_pages,
    names_of_actions,
    one_of_each,
    view_permissions,
)

pytestmark = pytest.mark.django_db

UNKNOWN: Final = 999_999
"""An id that no row has."""
OF_SUPERUSERS: Final = {
    "auth_group.delete_selected",
    "auth_user.reset_second_factor",
    "accounts_failedlogin.delete_selected",
}
WITH_VIEW: Final = {
    "subscriptions_eventtype.dry_run",
    "subscriptions_eventtype.export_all",
    "subscriptions_eventtype.export_chosen",
    "subscriptions_subscription.test_filter",
    "delivery_message.try_filters",
    "delivery_delivery.act_on_all",
}
REPLAYING: Final = {
    "subscriptions_subscription.replay",
    "delivery_delivery.replay_these",
    "delivery_delivery.resubmit",
    "delivery_delivery.resubmit_chosen",
    "delivery_deadletter.replay_these",
    "delivery_message.resubmit",
    "delivery_replay.new_replay",
    "delivery_replay.cancel",
}
CHANGING_SUBSCRIPTIONS: Final = {
    *(f"subscriptions_subscription.{name}" for name in ("activate", "inactivate", "cancel", "send_test_event")),
    *(f"subscriptions_subscription.{name}_chosen" for name in ("activate", "inactivate", "cancel")),
}
OPENED: Final[dict[tuple[str, ...], set[str]]] = {
    (): set(),
    ("delivery.view_payload",): set(),
    ("delivery.replay",): REPLAYING,
    ("delivery.change_delivery",): {
        f"delivery_delivery.{name}"
        for name in ("release", "release_chosen", "try_now", "try_chosen_now", "cancel_chosen")
    },
    ("delivery.change_mailbox",): {"delivery_mailbox.give_back", "delivery_mailbox.purge"},
    ("analytics.add_run",): {"analytics_run.cancel"},
    ("subscriptions.pause",): {
        f"subscriptions_subscription.{name}" for name in ("pause", "resume", "pause_chosen", "resume_chosen")
    },
    ("subscriptions.rotate_secret",): {
        f"subscriptions_subscription.{name}" for name in ("rotate_secret", "end_overlap")
    },
    ("subscriptions.change_subscription",): CHANGING_SUBSCRIPTIONS,
    ("subscriptions.change_subscription", "delivery.replay"): {
        *CHANGING_SUBSCRIPTIONS,
        *REPLAYING,
        "subscriptions_subscription.backfill",
    },
    ("subscriptions.change_subscriber",): {
        *(f"subscriptions_subscriber.{name}" for name in ("activate", "inactivate")),
        *(f"subscriptions_subscriber.{name}_chosen" for name in ("activate", "inactivate")),
    },
    ("subscriptions.change_apikey",): {"subscriptions_apikey.revoke"},
    ("subscriptions.add_apikey",): {"subscriptions_subscriber.portal_link"},
    ("subscriptions.issue_management_key",): set(),
    ("subscriptions.add_apikey", "subscriptions.issue_management_key"): {
        "subscriptions_apikey.rotate",
        "subscriptions_subscriber.portal_link",
    },
    ("subscriptions.add_eventtype", "subscriptions.change_eventtype"): {"subscriptions_eventtype.import_file"},
    ("auth.delete_group",): set(),
    ("auth.change_user",): set(),
    **{
        (f"django_celery_beat.delete_{name}",): {f"django_celery_beat_{name}.delete_selected"}
        for name in ("clockedschedule", "crontabschedule", "intervalschedule")
    },
}
"""The actions that permissions open, without those for all users who may view; the API key is one of management."""


@pytest.fixture(autouse=True)
def _plain_refusals(monkeypatch: pytest.MonkeyPatch) -> None:
    """Answer refusals, of which there are hundreds here, without drawing the page (`test_navigation.py` does)."""
    monkeypatch.setattr(account_views, "account_page", lambda *_, status=200, **__: HttpResponse(status=status))


@pytest.fixture
def rows() -> dict[str, int]:
    return one_of_each()


def test_the_table_of_permissions_has_every_action(rows: dict[str, int]) -> None:
    everything = {action.title for action in admin_actions(rows)}
    assert everything == OF_SUPERUSERS.union(WITH_VIEW, *OPENED.values())


def test_every_action_says_which_permission_it_takes() -> None:
    for pages_of_model, name in names_of_actions():
        assert getattr(pages_of_model, name).allowed_permissions, name


@pytest.mark.parametrize("model", admin_models())
def test_pages_take_the_permission_of_their_model(model: str, rows: dict[str, int]) -> None:
    by_page = model_pages(model, rows.get(model, UNKNOWN))
    nobody, staff, viewer = Client(), browser_with(), browser_with(*view_permissions())
    assert {page: nobody.get(address).headers.get("Location") for page, address in by_page.items()} == {
        page: f"/admin/login/?next={address}" for page, address in by_page.items()
    }
    for client, shown in ((staff, {}), (viewer, {"list": 200, "change": 200 if model in rows else 302})):
        wanted = {page: shown.get(page, 403) for page in by_page}
        assert {page: client.get(address).status_code for page, address in by_page.items()} == wanted
    refused = {page: viewer.post(by_page[page], {"post": "yes"}).status_code for page in ("add", "change", "delete")}
    assert refused == {"add": 403, "change": 403, "delete": 403}


@pytest.mark.parametrize("permissions", OPENED, ids=lambda given: "+".join(given) or "none")
def test_permissions_open_their_actions_and_no_others(permissions: tuple[str, ...], rows: dict[str, int]) -> None:
    client = browser_with(*view_permissions(), *permissions)
    every = [*admin_actions(rows)]
    refused = {action.title for action in every if action.title not in WITH_VIEW | OPENED[permissions]}
    assert {one.title for one in every if one.title in refused and one.posted(client).status_code != 403} == set()
    assert not LogEntry.objects.exists()
    opened = [one for one in every if one.title not in refused]
    assert {one.title for one in opened if one.asked(client).status_code == 403} == set()


def test_without_any_permission_every_action_is_refused(rows: dict[str, int]) -> None:
    staff, nobody = browser_with(), Client()
    assert {action.posted(staff).status_code for action in admin_actions(rows)} == {403}
    assert {action.posted(nobody).status_code for action in admin_actions(rows)} == {302}
    assert all(action.posted(nobody)["Location"].startswith("/admin/login/") for action in admin_actions(rows))


def test_buttons_are_shown_to_users_who_may_use_them(rows: dict[str, int]) -> None:
    viewer = browser_with(*view_permissions())
    for model, pk in rows.items():
        page = viewer.get(model_pages(model, pk)["change"])
        for offered in _flat(page.context["actions_detail"]):
            assert any(offered["path"] == action.address for action in admin_actions(rows) if action.title in WITH_VIEW)
        listed = viewer.get(model_pages(model, pk)["list"]).context
        chosen = {name for name, _ in (listed["action_form"].fields["action"].choices if listed["action_form"] else ())}
        assert chosen <= {"", "export_chosen"}


def _flat(offered: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [item for one in offered for item in (one.get("items") or [one])]


def test_opening_a_page_changes_nothing(admin: Client, rows: dict[str, int]) -> None:
    before = _state()
    for action in admin_actions(rows):
        assert action.asked(admin).status_code in {200, 302}, action.title
    assert (_state(), LogEntry.objects.count()) == (before, 0)


def test_requests_from_another_site_change_nothing(admin: Client, rows: dict[str, int]) -> None:
    elsewhere = Client(enforce_csrf_checks=True)
    elsewhere.cookies = admin.cookies
    before = _state()
    forms: tuple[dict[str, object], ...] = ({"confirmed": "yes"}, {"_form_submitted": "on"})
    for action in admin_actions(rows):
        for form in forms:
            sent = {**form, "action": action.name, "_selected_action": [action.pk or 0]}
            assert elsewhere.post(action.address, sent).status_code == 403, action.title
    assert (_state(), LogEntry.objects.count()) == (before, 0)


def _state() -> list[list[dict[str, object]]]:
    """Return all that actions change."""
    return [[*model.objects.order_by("pk").values()] for model in (Subscription, ApiKey, Delivery, Replay, Line)]


SECRETS: Final = {
    "delivery_message": ("in the body", "in a header", "in the filter string"),
    "delivery_attempt": ("in its head", "in its excerpt"),
    "delivery_idempotencykey": ("order-of-somebody",),
}


@pytest.mark.parametrize("model", SECRETS)
def test_contents_take_a_permission(model: str, rows: dict[str, int]) -> None:
    pages = model_pages(model, rows[model])
    viewer, reader = (browser_with(*view_permissions(), *more) for more in ((), ("delivery.view_payload",)))
    without, with_it = (client.get(pages["change"]) for client in (viewer, reader))
    listed = viewer.get(pages["list"])
    for secret in SECRETS[model]:
        assert (without.status_code, secret.encode() in without.content) == (200, False)
        assert (with_it.status_code, secret.encode() in with_it.content) == (200, True)
        assert (listed.status_code, secret.encode() in listed.content) == (200, False)
    assert b"Not shown: you do not have the permission" in without.content


def test_the_filter_lab_takes_the_permission_to_see_contents(rows: dict[str, int]) -> None:
    form = {"message": rows["delivery_message"], "filter": "$$->'Body'->>'secret' like 'in%'"}
    lab = "/admin/delivery/message/filter-lab/"
    without, with_it = (
        browser_with(*view_permissions(), *more).post(lab, form) for more in ((), ("delivery.view_payload",))
    )
    assert (without.status_code, "verdict" in without.context, b"in the body" in without.content) == (200, False, False)
    assert (with_it.context["verdict"].qualifies, b"in the body" in with_it.content) == (True, True)


def test_editing_a_body_takes_the_permission_to_see_contents(rows: dict[str, int]) -> None:
    Delivery.objects.filter(pk=rows["delivery_delivery"]).update(finished_at=timezone.now())
    form = f"/admin/delivery/delivery/{rows['delivery_delivery']}/resubmit/"
    without, with_it = (
        browser_with(*view_permissions(), "delivery.replay", *more).get(form)
        for more in ((), ("delivery.view_payload",))
    )
    assert (b"in the body" in without.content, b"in the body" in with_it.content) == (False, True)


@pytest.mark.parametrize(
    ("model", "condition"),
    [
        ("delivery_message", "filter_string__startswith=in"),
        ("delivery_message", "headers__contains=X-Secret"),
        ("delivery_attempt", "error__startswith=a"),
        ("subscriptions_subscription", "signing_secret__startswith=whsec_"),
        ("subscriptions_subscription", "headers__has_key=Authorization"),
        ("subscriptions_subscriber", "headers__has_key=Authorization"),
        ("subscriptions_apikey", "digest__startswith=a"),
        ("auth_user", "password__startswith=pbkdf2"),
    ],
)
def test_a_list_refuses_conditions_that_it_does_not_offer(admin: Client, model: str, condition: str) -> None:
    assert admin.get(f"{model_pages(model)['list']}?{condition}").status_code == 400
