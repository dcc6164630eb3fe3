"""People who edit people: nobody gives themselves or others what they have not, or takes over who has more."""

from typing import Any, Final

import pytest
from django.contrib.auth.models import Group, Permission, User
from django.test import Client

from tests.clients import client_of_admin

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
    """Somebody who manages people, and may do nothing else but pause."""
    return somebody("manager", *PEOPLE, "pause")


def edited(client: Client, user: User, **changes: Any) -> int:
    form = {
        "username": user.username,
        "is_active": "on",
        "is_staff": "on",
        "date_joined_0": "2026-11-20",
        "date_joined_1": "09:00:00",
        "user_permissions": [*user.user_permissions.values_list("pk", flat=True)],
        "groups": [*user.groups.values_list("pk", flat=True)],
    }
    return int(client.post(f"{ROOT}/user/{user.pk}/change/", {**form, **changes}).status_code)


def named(user: User) -> set[str]:
    return {*user.user_permissions.values_list("codename", flat=True)}


def test_a_manager_of_people_gives_what_they_have(manager: User) -> None:
    other = somebody("other")
    assert edited(browser_of(manager), other, user_permissions=[permission("pause").pk]) == 302
    assert named(other) == {"pause"}


@pytest.mark.parametrize("codename", ["issue_management_key", "replay", "view_payload", "change_subscription"])
def test_nobody_gives_what_they_have_not(manager: User, codename: str) -> None:
    other, client = somebody("other"), browser_of(manager)
    for user in (other, manager):
        before = named(user)
        assert edited(client, user, user_permissions=[permission(codename).pk]) == 200, "the form says what is wrong"
        assert named(user) == before


def test_nobody_joins_a_group_that_may_more(manager: User) -> None:
    mighty = Group.objects.create(name="mighty")
    mighty.permissions.set([permission("issue_management_key")])
    assert edited(browser_of(manager), manager, groups=[mighty.pk]) == 200
    assert not manager.groups.exists()


def test_nobody_but_superusers_makes_superusers(manager: User) -> None:
    other = somebody("other")
    edited(browser_of(manager), other, is_superuser="on")
    edited(browser_of(manager), manager, is_superuser="on")
    assert not User.objects.filter(is_superuser=True).exists()
    edited(client_of_admin(), other, is_superuser="on")
    other.refresh_from_db()
    assert other.is_superuser


TAKEN_OVER: Final = {
    "a superuser": {"is_superuser": True},
    "an inactive superuser": {"is_superuser": True, "is_active": False},
    "who may more": {"permissions": ("issue_management_key",)},
    "who was inactivated and may more": {"permissions": ("issue_management_key",), "is_active": False},
}


@pytest.mark.parametrize("fields", TAKEN_OVER.values(), ids=TAKEN_OVER)
def test_nobody_takes_over_who_may_more(manager: User, fields: dict[str, Any]) -> None:
    fields = {**fields}
    other, client = somebody("other", *fields.pop("permissions", ()), **fields), browser_of(manager)
    assert edited(client, other, username="mine") == 403
    password = {"password1": PASSWORD, "password2": PASSWORD, "usable_password": "true"}
    assert client.post(f"{ROOT}/user/{other.pk}/password/", password).status_code == 403
    other.refresh_from_db()
    assert (other.username, other.password) == ("other", "")


def test_who_may_more_by_a_group_is_not_taken_over_either(manager: User) -> None:
    mighty = Group.objects.create(name="mighty")
    mighty.permissions.set([permission("issue_management_key")])
    other = somebody("other")
    other.groups.set([mighty])
    assert edited(browser_of(manager), other, username="mine") == 403


def test_a_group_is_changed_by_who_has_all_of_its_permissions(manager: User) -> None:
    client = browser_of(manager)
    own, mighty = (Group.objects.create(name=name) for name in ("own", "mighty"))
    own.permissions.set([permission("pause")])
    mighty.permissions.set([permission("replay")])
    more = {"permissions": [permission("pause").pk, permission("replay").pk]}
    assert client.post(f"{ROOT}/group/{own.pk}/change/", {"name": "own", **more}).status_code == 200
    assert [one.codename for one in own.permissions.all()] == ["pause"]
    assert client.post(f"{ROOT}/group/{mighty.pk}/change/", {"name": "mine"}).status_code == 403
    assert client.post(f"{ROOT}/group/{mighty.pk}/delete/", {"post": "yes"}).status_code == 403
    both = {"action": "delete_selected", "_selected_action": [own.pk, mighty.pk], "post": "yes"}
    assert client.post(f"{ROOT}/group/", both).status_code == 403
    assert Group.objects.count() == 2
    assert client.post(f"{ROOT}/group/{own.pk}/change/", {"name": "renamed", "permissions": []}).status_code == 302


def test_whoever_leaves_is_made_inactive_and_stays_in_the_history() -> None:
    client, other = client_of_admin(), somebody("other")
    assert client.post(f"{ROOT}/user/{other.pk}/delete/", {"post": "yes"}).status_code == 403
    assert edited(client, other, is_active="") == 302
    other.refresh_from_db()
    assert not other.is_active
