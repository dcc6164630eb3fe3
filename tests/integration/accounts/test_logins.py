"""Failed logins are limited, and sessions end."""

import datetime as dt
import re
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import time_machine
from axes.models import AccessAttempt
from django.conf import settings
from django.contrib.admin.models import LogEntry
from django.contrib.auth.hashers import PBKDF2PasswordHasher
from django.contrib.auth.models import User
from django.contrib.sessions.models import Session
from django.db import connection, connections
from django.test import Client
from django.test.utils import CaptureQueriesContext

from broker_project.accounts import login_throttle, tasks
from broker_project.accounts.login_throttle import MAX_PER_ADDRESS, MAX_PER_NAME
from broker_project.accounts.sessions import SEEN_EVERY_SECONDS
from tests.support.admin import PASSWORD, admin_user, browser_at, log_in
from tests.support.database import execute

pytestmark = pytest.mark.django_db

TOO_MANY, IN, AGAIN = 429, 302, 200
ELSEWHERE = "203.0.113.9"

HOUR = 3600
NEW_PASSWORD = "another horse, another staple"


@pytest.fixture(autouse=True)
def quick_passwords(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let hashing take no time; how often it is done stays as it is."""
    monkeypatch.setattr(PBKDF2PasswordHasher, "iterations", 1_000)


def fail(name: str = "ann", times: int = MAX_PER_NAME, address: str = "198.51.100.1") -> list[int]:
    return [log_in(browser_at(address), name, "wrong").status_code for _ in range(times)]


def is_over() -> None:
    """Let the pause of everything that was counted be over."""
    for row in AccessAttempt.objects.all():
        AccessAttempt.objects.filter(pk=row.pk).update(attempt_time=row.attempt_time - login_throttle.PAUSE)


def test_a_lock_refuses_the_right_password_too(ann: User) -> None:
    assert fail() == [AGAIN] * MAX_PER_NAME
    assert log_in(browser_at()).status_code == TOO_MANY
    is_over()
    assert log_in(browser_at()).status_code == IN


def test_a_lock_applies_to_one_name_at_one_address(ann: User) -> None:
    admin_user("bob")
    fail("ann")
    assert log_in(browser_at(), "bob").status_code == IN
    assert log_in(browser_at(ELSEWHERE), "ann").status_code == IN
    assert log_in(browser_at(), "ann").status_code == TOO_MANY


def test_many_names_from_one_address_lock_the_address(ann: User) -> None:
    for number in range(MAX_PER_ADDRESS):
        fail(f"nobody-{number}", times=1)
    assert log_in(browser_at()).status_code == TOO_MANY
    assert log_in(browser_at(ELSEWHERE)).status_code == IN


def test_an_ipv6_address_counts_as_its_network() -> None:
    for number in range(MAX_PER_ADDRESS):
        fail(f"nobody-{number}", times=1, address=f"2001:db8:1:2::{number:x}")
    assert log_in(browser_at("2001:db8:1:2:ffff::1")).status_code == TOO_MANY
    assert log_in(browser_at("2001:db8:1:3::1")).status_code == AGAIN


def test_a_successful_login_resets_the_count_of_its_own_name_only(ann: User) -> None:
    fail("ann", times=MAX_PER_NAME - 1)
    fail("bob", times=2)
    assert log_in(browser_at()).status_code == IN
    assert list(AccessAttempt.objects.values_list("username", "failures_since_start")) == [("bob", 2)]


@pytest.mark.parametrize("form", [{"username": "ann"}, {"username": "ann", "password": ""}, {"password": "x"}, {}])
def test_a_login_without_a_password_does_not_count(ann: User, form: dict[str, str]) -> None:
    fail()
    assert browser_at().post("/admin/login/", form).status_code == AGAIN
    assert log_in(browser_at()).status_code == TOO_MANY


def test_tries_during_a_lock_do_not_extend_it() -> None:
    fail()
    counted = list(AccessAttempt.objects.values_list("failures_since_start", "attempt_time"))
    assert fail(times=3) == [TOO_MANY] * 3
    assert list(AccessAttempt.objects.values_list("failures_since_start", "attempt_time")) == counted


def test_the_lock_page_says_when_to_try_again_and_not_whether_the_name_exists(ann: User) -> None:
    pages = []
    for name in ("ann", "nobody"):
        fail(name, address=ELSEWHERE)
        answer = log_in(browser_at(ELSEWHERE), name)
        assert 0 < int(answer.headers["Retry-After"]) <= login_throttle.PAUSE.total_seconds() + 1
        pages.append(answer.content.decode())
    assert "Try again in 15 minutes" in pages[0]
    assert pages[0].replace("ann", "nobody") == pages[1]


def test_a_lock_allows_no_other_origin() -> None:
    fail()
    answer = browser_at().post(
        "/admin/login/", {"username": "ann", "password": "x"}, headers={"X-Requested-With": "XMLHttpRequest"}
    )
    assert (answer.status_code, answer.headers.get("Access-Control-Allow-Origin")) == (TOO_MANY, None)


def test_wrong_passwords_and_unknown_names_get_the_same_answer(ann: User) -> None:
    known, unknown = (log_in(browser_at(ELSEWHERE), name, "wrong").content.decode() for name in ("ann", "bob"))
    token = re.compile(r'name="csrfmiddlewaretoken" value="\w+"')
    assert token.sub("", known.replace("ann", "bob")) == token.sub("", unknown)


def test_an_unknown_name_takes_as_long_as_a_known_one(ann: User, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PBKDF2PasswordHasher, "iterations", 100_000)
    monkeypatch.setattr(login_throttle, "MAX_PER_NAME", 1_000)
    monkeypatch.setattr(login_throttle, "MAX_PER_ADDRESS", 1_000)
    ann.set_password(PASSWORD)
    ann.save()

    def took(name: str) -> float:
        began = time.thread_time()
        log_in(browser_at(), name, "wrong")
        return time.thread_time() - began

    known, unknown = zip(*((took("ann"), took("nobody")) for _ in range(9)), strict=True)
    assert 0.7 < statistics.median(known) / statistics.median(unknown) < 1.4


@pytest.mark.django_db(transaction=True)
def test_concurrent_tries_are_counted_like_sequential_ones(ann: User, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PBKDF2PasswordHasher, "iterations", 100_000)  # long enough for others to come meanwhile

    def attempt(_: int) -> int:
        try:
            return int(log_in(browser_at(), "ann", "wrong").status_code)
        finally:
            connections.close_all()

    with ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(attempt, range(24)))
    assert answers.count(AGAIN) <= MAX_PER_NAME
    assert answers.count(TOO_MANY) == 24 - answers.count(AGAIN)


def test_an_unlock_by_a_superuser_is_in_the_history() -> None:
    admin_user("admin")
    fail("bob")
    superuser = browser_at(ELSEWHERE)
    log_in(superuser, "admin")
    page = "/admin/accounts/failedlogin/"
    row = AccessAttempt.objects.get()
    assert "bob" in superuser.get(page).content.decode()
    superuser.post(page, {"action": "delete_selected", "_selected_action": [row.pk], "post": "yes"})
    assert fail("bob", times=1) == [AGAIN]
    assert LogEntry.objects.get().object_repr == "bob from 198.51.100.1"


def test_old_failures_and_expired_sessions_are_deleted(ann: User) -> None:
    client = browser_at()
    log_in(client)
    fail("bob")
    execute("UPDATE django_session SET expire_date = now() - interval '1 minute'")
    tasks.forget()
    assert AccessAttempt.objects.count() == 1
    is_over()
    tasks.forget()
    assert AccessAttempt.objects.count() == 0
    assert client.get("/admin/").status_code == 302


def test_a_failed_login_stores_only_the_name() -> None:
    browser_at().post("/admin/login/?token=secret", {"username": "ann", "password": "secret", "more": "secret"})
    row = AccessAttempt.objects.values().get()
    assert row.pop("attempt_time") > dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
    assert "secret" not in str(row)


@pytest.fixture
def ann() -> User:
    return admin_user()


@pytest.fixture
def after() -> Callable[[float], Any]:
    """Return what goes on so many seconds after the test began."""
    begun = dt.datetime.now(dt.UTC)
    return lambda seconds: time_machine.travel(begun + dt.timedelta(seconds=seconds), tick=True)


def logged_in() -> Client:
    client = browser_at()
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


def test_an_active_session_ends_too(ann: User, after: Callable[[float], Any]) -> None:
    client = logged_in()
    for hour in range(1, settings.SESSION_MAX_SECONDS // HOUR):
        with after(hour * HOUR):
            assert is_in(client)
    with after(settings.SESSION_MAX_SECONDS + 10):
        assert not is_in(client)
    assert Session.objects.count() == 0


def test_activity_is_stored_once_a_minute(ann: User, after: Callable[[float], Any]) -> None:
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
    boss = browser_at()
    admin_user("boss")
    log_in(boss, "boss")
    form = {"password1": NEW_PASSWORD, "password2": NEW_PASSWORD, "usable_password": "true"}
    boss.post(f"/admin/auth/user/{ann.pk}/password/", form)
    assert not is_in(hers)


def test_an_inactive_user_is_logged_out(ann: User) -> None:
    hers = logged_in()
    User.objects.filter(pk=ann.pk).update(is_active=False)
    assert not is_in(hers)


def test_a_login_makes_a_new_session(ann: User) -> None:
    client = browser_at()
    client.get("/admin/login/")
    planted = client.session
    planted["planted"] = True
    planted.save()
    client.cookies[settings.SESSION_COOKIE_NAME] = str(planted.session_key)
    log_in(client)
    assert client.session.session_key != planted.session_key
    assert not Session.objects.filter(session_key=planted.session_key).exists()


def test_the_api_has_no_sessions(ann: User, management: Client) -> None:
    ann_without_key = logged_in()
    assert ann_without_key.get("/api/v1/subscribers").status_code == 401
    assert management.get("/api/v1/subscribers").cookies == {}
