"""People who edit people: nobody gives themselves or others what they have not, or takes over who has more."""

from typing import Any, Final

import pytest
from django.contrib.auth.models import AnonymousUser, Group, Permission, User
from django.core.exceptions import PermissionDenied
from django.test import Client, RequestFactory

from broker_project.accounts.views import permission_denied
from tests.support.api import client_of_admin

pytestmark = pytest.mark.django_db

ROOT: Final = "/admin/auth"
PEOPLE: Final = [f"{verb}_{model}" for model in ("user", "group") for verb in ("view", "add", "change", "delete")]
PASSWORD: Final = "a-long-one-that-nobody-guesses"


def permission(name: str) -> Permission:
    return Permission.objects.get(codename=name)


def somebody(name: str, *permissions: str, **fields: Any) -> User:
    made = User.objects.create(username=name, is_staff=True, **fields)
    made.user_permissions.set(Permission.objects.filter(codename__in=permissions))
    return made


def browser_of(user: User) -> Client:
    client = Client()
    client.force_login(user)
    return client


@pytest.fixture
def manager() -> User:
    """Somebody who manages people, and may do nothing else."""
    return somebody("manager", *PEOPLE)


def edited(client: Client, user: User, **changes: Any) -> int:
    joined = {"date_joined_0": "2026-11-20", "date_joined_1": "09:00:00"}
    own = {"user_permissions": user.user_permissions, "groups": user.groups}
    form: dict[str, Any] = {"username": user.username, "is_active": "on", "is_staff": "on", **joined}
    form |= {name: [*them.values_list("pk", flat=True)] for name, them in own.items()}
    return int(client.post(f"{ROOT}/user/{user.pk}/change/", {**form, **changes}).status_code)


def named(user: User) -> set[str]:
    return {*user.user_permissions.values_list("codename", flat=True)}


@pytest.mark.parametrize("page", ["user/{}/change/", "group/add/"])
def test_forms_offer_permissions_of_models_with_pages(admin: Client, page: str) -> None:
    form = admin.get(f"{ROOT}/{page.format(somebody('clerk').pk)}").context["adminform"].form
    field = form.fields["user_permissions" if "user" in page else "permissions"]
    shown = {label for _, label in field.choices}
    assert "delivery.view_payload: Can see bodies and headers, of messages and of answers" in shown
    models = {label.split(":")[0].rpartition("_")[2] for label in shown}
    assert not models & {"session", "contenttype", "accessattempt", "logentry", "recoverycode", "latency"}


def test_adding_a_user_takes_a_name_and_a_password(admin: Client) -> None:
    assert "LDAP" not in admin.get(f"{ROOT}/user/add/").text
    form = {"username": "new", "password1": PASSWORD, "password2": PASSWORD}
    assert admin.post(f"{ROOT}/user/add/", form).status_code == 302
    assert User.objects.get(username="new").check_password(PASSWORD)
    assert admin.post(f"{ROOT}/user/add/", {"username": "other"}).status_code == 200


@pytest.mark.parametrize(
    ("path", "kind"), [("/admin/", "text/html; charset=utf-8"), ("/api/v1/", "application/problem+json")]
)
def test_anonymous_requests_and_api_calls_are_refused_without_an_admin_page(path: str, kind: str) -> None:
    request = RequestFactory().get(path)
    request.user = AnonymousUser()
    refused = permission_denied(request, PermissionDenied())
    assert (refused.status_code, refused["Content-Type"]) == (403, kind)


@pytest.mark.parametrize("codename", ["pause", "issue_management_key", "view_payload", "change_subscription"])
def test_only_superusers_assign_permissions(manager: User, codename: str) -> None:
    other, client = somebody("other"), browser_of(manager)
    mighty = Group.objects.create(name="mighty")
    mighty.permissions.set([permission(codename)])
    for user in (other, manager):
        before = named(user)
        edited(client, user, user_permissions=[permission(codename).pk], groups=[mighty.pk], is_superuser="on")
        user.refresh_from_db()
        assert (named(user), user.is_superuser, user.groups.exists()) == (before, False, False)
    assert edited(client_of_admin(), other, user_permissions=[permission(codename).pk]) == 302
    assert named(other) == {codename}


def test_a_user_manager_edits_users_with_no_more_permissions(manager: User) -> None:
    other = somebody("other", "view_user")
    assert edited(browser_of(manager), other, first_name="Ann") == 302
    other.refresh_from_db()
    assert other.first_name == "Ann"


TAKEN_OVER: Final = {
    "a superuser": {"is_superuser": True},
    "an inactive superuser": {"is_superuser": True, "is_active": False},
    "who may more": {"permissions": ("issue_management_key",)},
    "who was inactivated and may more": {"permissions": ("issue_management_key",), "is_active": False},
}


@pytest.mark.parametrize("fields", TAKEN_OVER.values(), ids=TAKEN_OVER)
def test_nobody_edits_a_user_with_more_permissions(manager: User, fields: dict[str, Any]) -> None:
    fields = {**fields}
    other, client = somebody("other", *fields.pop("permissions", ()), **fields), browser_of(manager)
    assert edited(client, other, username="mine") == 403
    password = {"password1": PASSWORD, "password2": PASSWORD, "usable_password": "true"}
    assert client.post(f"{ROOT}/user/{other.pk}/password/", password).status_code == 403
    other.refresh_from_db()
    assert (other.username, other.password) == ("other", "")


def test_permissions_by_groups_count_too(manager: User) -> None:
    mighty = Group.objects.create(name="mighty")
    mighty.permissions.set([permission("issue_management_key")])
    other = somebody("other")
    other.groups.set([mighty])
    assert edited(browser_of(manager), other, username="mine") == 403


def test_only_superusers_change_groups(manager: User) -> None:
    client, own = browser_of(manager), Group.objects.create(name="own")
    for address in ("add", f"{own.pk}/change", f"{own.pk}/delete"):
        assert client.post(f"{ROOT}/group/{address}/", {"name": "mine", "post": "yes"}).status_code == 403
    assert [one.name for one in Group.objects.all()] == ["own"]


def test_users_are_made_inactive_and_never_deleted() -> None:
    client, other = client_of_admin(), somebody("other")
    assert client.post(f"{ROOT}/user/{other.pk}/delete/", {"post": "yes"}).status_code == 403
    assert edited(client, other, is_active="") == 302
    other.refresh_from_db()
    assert not other.is_active
