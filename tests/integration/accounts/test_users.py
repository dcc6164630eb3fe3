"""People who edit people: nobody gives themselves or others what they have not, or takes over who has more."""

from typing import Any, Final

import pytest
from django.contrib.auth.models import AnonymousUser, Group, Permission, User
from django.core.exceptions import PermissionDenied
from django.core.management.sql import emit_post_migrate_signal
from django.db import connection
from django.test import Client, RequestFactory

from broker_project.accounts.roles import install_roles
from broker_project.accounts.views import permission_denied
from tests.support import factories
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


OPENED_BY_ROLES: Final = {
    "/admin/delivery/delivery/": {"Viewer", "Operator", "Administrator"},
    "/admin/delivery/line/": {"Viewer", "Operator", "Administrator"},
    "/admin/analytics/run/live/": {"Viewer", "Operator", "Administrator"},
    "/admin/subscriptions/subscription/": {"Viewer", "Operator", "Administrator"},
    "/admin/delivery/replay/new/": {"Operator", "Administrator"},
    "/admin/subscriptions/subscriber/add/": {"Administrator"},
    "/admin/subscriptions/apikey/add/": {"Administrator"},
    "/admin/django_celery_beat/periodictask/": {"Administrator"},
    "/admin/auth/user/": {"Administrator"},
    "/admin/auth/group/add/": set(),
}


@pytest.fixture
def by_role() -> dict[str, Client]:
    """A browser of somebody with each role, which a migration has installed."""
    emit_post_migrate_signal(verbosity=0, interactive=False, db="default")
    Group.objects.get(name="Viewer").permissions.set([permission("add_user")])
    emit_post_migrate_signal(verbosity=0, interactive=False, db="default")
    people = {role.name: somebody(role.name.lower()) for role in Group.objects.all()}
    for name, user in people.items():
        user.groups.set([Group.objects.get(name=name)])
    return {name: browser_of(user) for name, user in people.items()}


def test_roles_come_installed_and_open_their_pages(by_role: dict[str, Client]) -> None:
    assert {*by_role} == {"Viewer", "Operator", "Administrator"}
    opened = {
        page: {name for name, client in by_role.items() if client.get(page).status_code == 200}
        for page in OPENED_BY_ROLES
    }
    assert opened == OPENED_BY_ROLES
    assert all("Waiting now" in client.get("/admin/").text for client in by_role.values())
    contents = {role.name: role.permissions.filter(codename="view_payload").exists() for role in Group.objects.all()}
    assert contents == {"Viewer": False, "Operator": True, "Administrator": True}


def test_a_group_that_people_have_created_is_no_role() -> None:
    Group.objects.filter(name="Operator").delete()
    own = Group.objects.create(name="Operator")
    emit_post_migrate_signal(verbosity=0, interactive=False, db="default")
    assert not own.permissions.exists()
    Group.objects.filter(pk=own.pk).update(name="Phone operators")
    emit_post_migrate_signal(verbosity=0, interactive=False, db="default")
    assert (own.permissions.exists(), Group.objects.get(name="Operator").permissions.exists()) == (False, True)


def test_a_migration_that_is_killed_leaves_no_role_that_no_other_installs() -> None:
    Group.objects.all().delete()

    def killed(execute: Any, sql: str, *rest: Any) -> Any:
        if sql.startswith('INSERT INTO "accounts_installedrole"'):
            raise KeyboardInterrupt
        return execute(sql, *rest)

    with pytest.raises(KeyboardInterrupt), connection.execute_wrapper(killed):
        install_roles()
    install_roles()
    assert [role.name for role in Group.objects.all() if not role.permissions.exists()] == []
    assert Group.objects.count() == 3


def test_a_refused_page_says_what_is_missing_and_who_has_it(by_role: dict[str, Client]) -> None:
    refused = " ".join(by_role["Viewer"].get("/admin/subscriptions/subscriber/add/").text.split())
    assert "This takes the permission subscriptions.add_subscriber, which the role Administrator has." in refused
    assert "You are viewer with the role Viewer. Superusers assign roles and permissions: ask one." in refused
    address = f"/admin/subscriptions/publisher/{factories.publisher('shop').pk}/change/"
    posted = " ".join(by_role["Viewer"].post(address).text.split())
    assert "This takes the permission subscriptions.change_publisher, which the role Administrator has." in posted
    assert "This takes" not in by_role["Viewer"].post("/admin/delivery/delivery/", {"action": "cancel"}).text
    nobody = " ".join(browser_of(somebody("nobody")).get("/admin/delivery/delivery/").text.split())
    assert "which the roles Viewer, Operator, Administrator have. You are nobody without a role." in nobody


@pytest.mark.parametrize(
    ("address", "status", "told"),
    [
        ("nowhere/", 404, "There is nothing at this address, or it was deleted."),
        ("subscriptions/subscription/4711/inactivate/", 404, "There is nothing at this address"),
        ("delivery/delivery/?colour=red", 400, "Filtering by colour not allowed"),
        ("delivery/delivery/?status__exact=%00", 400, "something that cannot be"),
    ],
)
def test_an_address_that_cannot_be_has_a_page_with_a_way_back(
    admin: Client, address: str, status: int, told: str
) -> None:
    answer = admin.get(f"/admin/{address}")
    seen = (answer.status_code, told in answer.text, "To the start page" in answer.text, "nav-sidebar" in answer.text)
    assert seen == (status, True, True, True)


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
    "who may more by a group": {"by_group": "issue_management_key"},
}


@pytest.mark.parametrize("fields", TAKEN_OVER.values(), ids=TAKEN_OVER)
def test_nobody_edits_a_user_with_more_permissions(manager: User, fields: dict[str, Any]) -> None:
    fields, mighty, client = {**fields}, Group.objects.create(name="mighty"), browser_of(manager)
    mighty.permissions.set(Permission.objects.filter(codename=fields.pop("by_group", "")))
    other = somebody("other", *fields.pop("permissions", ()), **fields)
    other.groups.set([mighty])
    assert edited(client, other, username="mine") == 403
    password = {"password1": PASSWORD, "password2": PASSWORD, "usable_password": "true"}
    assert client.post(f"{ROOT}/user/{other.pk}/password/", password).status_code == 403
    other.refresh_from_db()
    assert (other.username, other.password) == ("other", "")


def test_only_superusers_change_groups(manager: User) -> None:
    client, own = browser_of(manager), Group.objects.create(name="own")
    for address in ("add", f"{own.pk}/change", f"{own.pk}/delete"):
        assert client.post(f"{ROOT}/group/{address}/", {"name": "mine", "post": "yes"}).status_code == 403
    assert not Group.objects.filter(name="mine").exists()
    assert Group.objects.filter(pk=own.pk, name="own").exists()


def test_users_are_made_inactive_and_never_deleted() -> None:
    client, other = client_of_admin(), somebody("other")
    assert client.post(f"{ROOT}/user/{other.pk}/delete/", {"post": "yes"}).status_code == 403
    assert edited(client, other, is_active="") == 302
    other.refresh_from_db()
    assert not other.is_active
