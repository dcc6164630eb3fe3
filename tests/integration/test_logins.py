"""How often logins may be tried."""

import datetime as dt
import re
import statistics
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from axes.models import AccessAttempt
from django.contrib.admin.models import LogEntry
from django.contrib.auth.hashers import PBKDF2PasswordHasher
from django.db import connection, connections
from django.test import Client

from broker_project.accounts import login_throttle, tasks
from broker_project.accounts.login_throttle import MOST_FOR_A_NAME, MOST_FROM_AN_ADDRESS
from tests.logging_in import PASSWORD, browser, log_in, person

pytestmark = pytest.mark.django_db

TOO_MANY, IN, AGAIN = 429, 302, 200
ELSEWHERE = "203.0.113.9"


@pytest.fixture(autouse=True)
def quick_passwords(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let hashing take no time; how often it is done stays as it is."""
    monkeypatch.setattr(PBKDF2PasswordHasher, "iterations", 1_000)


def fail(name: str = "ann", times: int = MOST_FOR_A_NAME, address: str = "198.51.100.1") -> list[int]:
    return [log_in(browser(address), name, "wrong").status_code for _ in range(times)]


def is_over() -> None:
    """Let the pause of everything that was counted be over."""
    for row in AccessAttempt.objects.all():
        AccessAttempt.objects.filter(pk=row.pk).update(attempt_time=row.attempt_time - login_throttle.PAUSE)


def test_after_so_many_failures_not_even_the_right_password_is_looked_at() -> None:
    person()
    assert fail() == [AGAIN] * MOST_FOR_A_NAME
    assert log_in(browser()).status_code == TOO_MANY
    is_over()
    assert log_in(browser()).status_code == IN


def test_only_that_name_at_that_address_is_locked_out() -> None:
    person("ann")
    person("bob")
    fail("ann")
    assert log_in(browser(), "bob").status_code == IN
    assert log_in(browser(ELSEWHERE), "ann").status_code == IN
    assert log_in(browser(), "ann").status_code == TOO_MANY


def test_names_that_flood_from_one_address_lock_it_out() -> None:
    person()
    for number in range(MOST_FROM_AN_ADDRESS):
        fail(f"nobody-{number}", times=1)
    assert log_in(browser()).status_code == TOO_MANY
    assert log_in(browser(ELSEWHERE)).status_code == IN


def test_an_ipv6_address_counts_as_all_that_its_owner_has() -> None:
    for number in range(MOST_FROM_AN_ADDRESS):
        fail(f"nobody-{number}", times=1, address=f"2001:db8:1:2::{number:x}")
    assert log_in(browser("2001:db8:1:2:ffff::1")).status_code == TOO_MANY
    assert log_in(browser("2001:db8:1:3::1")).status_code == AGAIN


def test_a_login_that_succeeds_takes_back_what_was_counted_for_its_own_name_only() -> None:
    person()
    fail("ann", times=MOST_FOR_A_NAME - 1)
    fail("bob", times=2)
    assert log_in(browser()).status_code == IN
    assert list(AccessAttempt.objects.values_list("username", "failures_since_start")) == [("bob", 2)]


@pytest.mark.parametrize("form", [{"username": "ann"}, {"username": "ann", "password": ""}, {"password": "x"}, {}])
def test_a_login_without_a_password_changes_nothing_of_what_was_counted(form: dict[str, str]) -> None:
    person()
    fail()
    assert browser().post("/admin/login/", form).status_code == AGAIN
    assert log_in(browser()).status_code == TOO_MANY


def test_what_is_tried_while_locked_out_does_not_put_off_its_end() -> None:
    fail()
    counted = list(AccessAttempt.objects.values_list("failures_since_start", "attempt_time"))
    assert fail(times=3) == [TOO_MANY] * 3
    assert list(AccessAttempt.objects.values_list("failures_since_start", "attempt_time")) == counted


def test_the_page_says_when_to_try_again_and_not_whether_there_is_such_a_person() -> None:
    person()
    pages = []
    for name in ("ann", "nobody"):
        fail(name, address=ELSEWHERE)
        answer = log_in(browser(ELSEWHERE), name)
        assert 0 < int(answer.headers["Retry-After"]) <= login_throttle.PAUSE.total_seconds() + 1
        pages.append(answer.content.decode())
    assert "Try again in 15 minutes" in pages[0]
    assert pages[0].replace("ann", "nobody") == pages[1]


def test_scripts_elsewhere_learn_nothing_of_it() -> None:
    fail()
    answer = browser().post(
        "/admin/login/", {"username": "ann", "password": "x"}, headers={"X-Requested-With": "XMLHttpRequest"}
    )
    assert (answer.status_code, answer.headers.get("Access-Control-Allow-Origin")) == (TOO_MANY, None)


def test_the_wrong_password_and_the_unknown_name_are_answered_alike() -> None:
    person()
    known, unknown = (log_in(browser(ELSEWHERE), name, "wrong").content.decode() for name in ("ann", "bob"))
    token = re.compile(r'name="csrfmiddlewaretoken" value="\w+"')
    assert token.sub("", known.replace("ann", "bob")) == token.sub("", unknown)


def test_an_unknown_name_takes_as_long_as_a_known_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PBKDF2PasswordHasher, "iterations", 100_000)
    monkeypatch.setattr(login_throttle, "MOST_FOR_A_NAME", 1_000)
    monkeypatch.setattr(login_throttle, "MOST_FROM_AN_ADDRESS", 1_000)
    ann = person()
    ann.set_password(PASSWORD)
    ann.save()

    def took(name: str) -> float:
        began = time.thread_time()
        log_in(browser(), name, "wrong")
        return time.thread_time() - began

    known, unknown = zip(*((took("ann"), took("nobody")) for _ in range(9)), strict=True)
    assert 0.7 < statistics.median(known) / statistics.median(unknown) < 1.4


@pytest.mark.django_db(transaction=True)
def test_many_tries_at_once_are_no_more_than_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PBKDF2PasswordHasher, "iterations", 100_000)  # long enough for others to come meanwhile
    person()

    def attempt(_: int) -> int:
        try:
            return int(log_in(browser(), "ann", "wrong").status_code)
        finally:
            connections.close_all()

    with ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(attempt, range(24)))
    assert answers.count(AGAIN) <= MOST_FOR_A_NAME
    assert answers.count(TOO_MANY) == 24 - answers.count(AGAIN)


def test_a_superuser_lets_somebody_try_again_and_the_history_has_it() -> None:
    person("admin")
    fail("bob")
    superuser = browser(ELSEWHERE)
    log_in(superuser, "admin")
    page = "/admin/accounts/failedlogin/"
    row = AccessAttempt.objects.get()
    assert "bob" in superuser.get(page).content.decode()
    superuser.post(page, {"action": "delete_selected", "_selected_action": [row.pk], "post": "yes"})
    assert fail("bob", times=1) == [AGAIN]
    assert LogEntry.objects.get().object_repr == "bob from 198.51.100.1"


def test_only_superusers_let_people_try_again() -> None:
    person("viewer", is_superuser=False)
    fail("bob")
    viewer = browser(ELSEWHERE)
    log_in(viewer, "viewer")
    row = AccessAttempt.objects.get()
    assert viewer.get("/admin/accounts/failedlogin/").status_code == 403
    assert viewer.post(f"/admin/accounts/failedlogin/{row.pk}/delete/", {"post": "yes"}).status_code == 403


def test_what_counts_no_more_is_forgotten_with_sessions_that_have_ended() -> None:
    person()
    client = browser()
    log_in(client)
    fail("bob")
    with connection.cursor() as cursor:
        cursor.execute("UPDATE django_session SET expire_date = now() - interval '1 minute'")
    tasks.forget()
    assert AccessAttempt.objects.count() == 1
    is_over()
    tasks.forget()
    assert AccessAttempt.objects.count() == 0
    assert client.get("/admin/").status_code == 302


def test_nothing_of_what_was_typed_is_stored_but_the_name(client: Client) -> None:
    client.post("/admin/login/?token=secret", {"username": "ann", "password": "secret", "more": "secret"})
    row = AccessAttempt.objects.values().get()
    assert row.pop("attempt_time") > dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
    assert "secret" not in str(row)
