"""How long people stay logged in."""

import datetime as dt
from collections.abc import Callable
from typing import Any

import pytest
import time_machine
from django.conf import settings
from django.contrib.auth.hashers import PBKDF2PasswordHasher
from django.contrib.auth.models import User
from django.contrib.sessions.models import Session
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from broker_project.accounts.sessions import SEEN_EVERY_SECONDS
from tests.logging_in import PASSWORD, browser, log_in, person

pytestmark = pytest.mark.django_db

HOUR = 3600
NEW_PASSWORD = "another horse, another staple"


@pytest.fixture(autouse=True)
def quick_passwords(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PBKDF2PasswordHasher, "iterations", 1_000)


@pytest.fixture
def ann() -> User:
    return person()


@pytest.fixture
def after() -> Callable[[float], Any]:
    """Return what goes on so many seconds after the test began."""
    begun = dt.datetime.now(dt.UTC)
    return lambda seconds: time_machine.travel(begun + dt.timedelta(seconds=seconds), tick=True)


def logged_in() -> Client:
    client = browser()
    assert log_in(client).status_code == 302
    return client


def is_in(client: Client) -> bool:
    return bool(client.get("/admin/auth/group/").status_code == 200)


def test_a_session_in_which_nothing_is_done_ends(ann: User, after: Callable[[float], Any]) -> None:
    client = logged_in()
    with after(settings.SESSION_COOKIE_AGE - 10):
        assert is_in(client)
    with after(2 * settings.SESSION_COOKIE_AGE - 30):
        assert is_in(client)
    with after(3 * settings.SESSION_COOKIE_AGE):
        assert not is_in(client)


def test_a_session_ends_however_much_is_done_in_it(ann: User, after: Callable[[float], Any]) -> None:
    client = logged_in()
    for hour in range(1, settings.SESSION_MOST_SECONDS // HOUR):
        with after(hour * HOUR):
            assert is_in(client)
    with after(settings.SESSION_MOST_SECONDS + 10):
        assert not is_in(client)
    assert Session.objects.count() == 0


def test_a_page_soon_after_another_writes_nothing(ann: User, after: Callable[[float], Any]) -> None:
    client = logged_in()
    with CaptureQueriesContext(connection) as soon:
        is_in(client)
    with after(SEEN_EVERY_SECONDS + 5), CaptureQueriesContext(connection) as later:
        is_in(client)
    writes = [[query["sql"] for query in queries if "UPDATE" in query["sql"]] for queries in (soon, later)]
    assert list(map(len, writes)) == [0, 1]


def test_a_new_password_ends_all_other_sessions(ann: User) -> None:
    here, elsewhere = logged_in(), logged_in()
    form = {"old_password": PASSWORD, "new_password1": NEW_PASSWORD, "new_password2": NEW_PASSWORD}
    assert here.post("/admin/password_change/", form).status_code == 302
    assert (is_in(here), is_in(elsewhere)) == (True, False)


def test_a_password_that_a_superuser_sets_ends_all_sessions(ann: User) -> None:
    hers = logged_in()
    boss = browser()
    person("boss")
    log_in(boss, "boss")
    form = {"password1": NEW_PASSWORD, "password2": NEW_PASSWORD, "usable_password": "true"}
    boss.post(f"/admin/auth/user/{ann.pk}/password/", form)
    assert not is_in(hers)


def test_whoever_is_no_longer_active_is_out(ann: User) -> None:
    hers = logged_in()
    User.objects.filter(pk=ann.pk).update(is_active=False)
    assert not is_in(hers)


def test_a_login_makes_a_new_session(ann: User) -> None:
    client = browser()
    client.get("/admin/login/")
    planted = client.session
    planted["planted"] = True
    planted.save()
    client.cookies[settings.SESSION_COOKIE_NAME] = str(planted.session_key)
    log_in(client)
    assert client.session.session_key != planted.session_key
    assert not Session.objects.filter(session_key=planted.session_key).exists()


def test_calls_with_keys_know_no_sessions(ann: User, management: Client) -> None:
    ann_without_key = logged_in()
    assert ann_without_key.get("/api/v1/subscribers").status_code == 401
    assert management.get("/api/v1/subscribers").cookies == {}
