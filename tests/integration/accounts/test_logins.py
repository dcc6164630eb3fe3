"""Failed logins are limited, sessions end, and a second factor is asked for."""

import base64
import datetime as dt
import hashlib
import io
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
from django.contrib.auth.models import Permission, User
from django.contrib.sessions.models import Session
from django.core.management import CommandError, call_command
from django.db import connection, connections
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone
from django_otp.oath import totp

from broker_project.accounts import login_throttle, tasks
from broker_project.accounts.login_throttle import MAX_PER_ADDRESS, MAX_PER_NAME
from broker_project.accounts.mfa import MAX_FREE_FAILURES, MAX_PAUSE, CodeCheck, pause_after, prove
from broker_project.accounts.models import RecoveryCode, SecondFactor
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


def test_a_lock_refuses_the_right_password_too_for_one_name_at_one_address(ann: User) -> None:
    admin_user("bob")
    assert fail() == [AGAIN] * MAX_PER_NAME
    logged_in("bob")
    logged_in(address=ELSEWHERE)
    assert log_in(browser_at()).status_code == TOO_MANY
    is_over()
    logged_in()


def test_tries_of_a_time_to_come_do_not_count(ann: User) -> None:
    fail()
    AccessAttempt.objects.update(attempt_time=timezone.now() + 2 * login_throttle.PAUSE)  # the clock was ahead
    assert fail() == [AGAIN] * MAX_PER_NAME
    assert fail(times=1) == [TOO_MANY]


def test_a_name_longer_than_any_counts_like_others() -> None:
    assert fail("a" * 5_000) == [AGAIN] * MAX_PER_NAME
    assert fail("a" * 5_000, times=1) == [TOO_MANY]


@pytest.mark.parametrize(
    ("addresses", "same", "other"),
    [
        ("198.51.100.1", "198.51.100.1", ELSEWHERE),
        ("2001:db8:1:2::{:x}", "2001:db8:1:2:ffff::1", "2001:db8:1:3::1"),
    ],
)
def test_many_names_from_one_address_or_network_lock_it(ann: User, addresses: str, same: str, other: str) -> None:
    for number in range(MAX_PER_ADDRESS):
        fail(f"nobody-{number}", times=1, address=addresses.format(number))
    assert [log_in(browser_at(one)).status_code for one in (same, other)] == [TOO_MANY, IN]


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
        pages.append(answer.text)
    assert "Try again in 15 minutes" in pages[0]
    assert pages[0].replace("ann", "nobody") == pages[1]


def test_wrong_passwords_and_unknown_names_get_the_same_answer(ann: User) -> None:
    known, unknown = (log_in(browser_at(ELSEWHERE), name, "wrong").text for name in ("ann", "bob"))
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
    superuser = logged_in("admin", ELSEWHERE)
    page = "/admin/accounts/failedlogin/"
    row = AccessAttempt.objects.get()
    assert "bob" in superuser.get(page).text
    superuser.post(page, {"action": "delete_selected", "_selected_action": [row.pk], "post": "yes"})
    assert fail("bob", times=1) == [AGAIN]
    assert LogEntry.objects.get().object_repr == "bob from 198.51.100.1"


def test_old_failures_and_expired_sessions_are_deleted(ann: User) -> None:
    client = logged_in()
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


def logged_in(name: str = "ann", address: str = "198.51.100.1") -> Client:
    client = browser_at(address)
    assert log_in(client, name).status_code == IN
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


def test_a_page_that_refreshes_itself_is_no_activity(ann: User, after: Callable[[float], Any]) -> None:
    client = logged_in()
    with after(settings.SESSION_COOKIE_AGE - 10):
        assert client.get("/admin/auth/group/", headers={"HX-Request": "true"}).status_code == 200
    with after(settings.SESSION_COOKIE_AGE + 10):
        assert not is_in(client)
        refreshed = client.get("/admin/auth/group/", headers={"HX-Request": "true"})
        assert (refreshed.status_code, refreshed.headers.get("HX-Refresh")) == (200, "true"), "the login comes to sight"


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


ROOT = "/admin/second-factor/"
CODE = f"{ROOT}code/"
NOW = dt.datetime(2026, 11, 22, 12, 0, tzinfo=dt.UTC)
RECOVERY_CODE = re.compile(r"<li>((?:[A-Z2-7]{4}-?){4})</li>")


@pytest.fixture
def page(ann: User) -> Client:
    """A browser in which Ann has logged in."""
    return logged_in()


def code(user: User, *, steps: int = 0) -> str:
    """Return the code that the app shows this number of steps from now."""
    seed = base64.b32decode(SecondFactor.objects.get(user=user).seed)
    return f"{totp(seed, drift=steps):06}"


def set_up(client: Client, user: User) -> list[str]:
    """Set it up as people do; return the recovery codes."""
    client.post(f"{ROOT}begin/", {"password": PASSWORD})
    shown = client.post(f"{ROOT}confirm/", {"code": code(user)})
    return RECOVERY_CODE.findall(shown.text)


def asked(user: User, *, until: str = "/admin/") -> Client:
    """Return another browser, in which the password was right."""
    client = logged_in(user.username)
    answer = client.get(until)
    assert answer.headers["Location"].startswith(CODE)
    return client


@pytest.fixture
def codes(page: Client, ann: User) -> list[str]:
    """Ann's recovery codes, after she has set up a second factor."""
    return set_up(page, ann)


@pytest.fixture
def asking(codes: list[str], ann: User) -> Client:
    """Another browser, in which Ann's password was right."""
    return asked(ann)


def gets_in(client: Client, given: str) -> bool:
    """Tell whether a code lets a browser into the admin."""
    client.post(CODE, {"code": given, "next": "/admin/"})
    return bool(client.get("/admin/").status_code == 200)


def later(steps: int) -> "time_machine.travel":
    return time_machine.travel(dt.datetime.now(dt.UTC) + dt.timedelta(seconds=30 * steps), tick=True)


def test_a_seed_is_shown_once_and_stored_by_no_browser(page: Client, ann: User) -> None:
    shown = page.post(f"{ROOT}begin/", {"password": PASSWORD})
    seed = SecondFactor.objects.get().seed
    assert (shown.status_code, shown.headers["Cache-Control"]) == (200, "no-store")
    assert seed in shown.text
    assert "<svg" in shown.text
    wrong = page.post(f"{ROOT}confirm/", {"code": "000000"})
    for answer in (wrong, page.get(ROOT), page.get("/admin/"), page.get(f"{ROOT}begin/", follow=True)):
        assert seed not in answer.text
    assert seed not in str(dict(page.session))


def test_a_second_factor_takes_effect_with_its_first_code_in_earlier_sessions_too(page: Client, ann: User) -> None:
    before = logged_in()
    page.post(f"{ROOT}begin/", {"password": PASSWORD})
    assert [client.get("/admin/").status_code for client in (page, before, logged_in())] == [200, 200, 200]
    assert len(RECOVERY_CODE.findall(page.post(f"{ROOT}confirm/", {"code": code(ann)}).text)) == 10
    assert page.get("/admin/").status_code == 200
    assert before.get("/admin/").headers["Location"].startswith(CODE)


TO_CHANGE = {"new_password1": NEW_PASSWORD, "new_password2": NEW_PASSWORD}


@pytest.mark.parametrize(
    ("address", "field", "told"),
    [
        (f"{ROOT}begin/", "password", "This is not your password."),
        ("/admin/password_change/", "old_password", "Your old password was entered incorrectly."),
    ],
)
def test_wrong_passwords_in_a_session_count_as_failed_logins(
    page: Client, ann: User, address: str, field: str, told: str
) -> None:
    for _ in range(MAX_PER_NAME):
        assert told in page.post(address, {field: "wrong", **TO_CHANGE}).text
    assert page.post(address, {field: PASSWORD, **TO_CHANGE}).status_code == TOO_MANY
    ann.refresh_from_db()
    assert (SecondFactor.objects.count(), ann.check_password(PASSWORD)) == (0, True)


def test_right_passwords_and_none_do_not_count_as_failed_logins(page: Client, ann: User) -> None:
    for _ in range(MAX_PER_NAME + 1):
        assert page.post(f"{ROOT}begin/", {"password": PASSWORD}).status_code == 200
        assert page.post("/admin/password_change/", {"old_password": PASSWORD}).status_code == 200
        assert page.post("/admin/password_change/", TO_CHANGE).status_code == 200
    assert AccessAttempt.objects.count() == 0


def test_the_password_alone_opens_nothing(ann: User, asking: Client) -> None:
    for address in (
        "/admin/subscriptions/apikey/",
        "/admin/password_change/",
        ROOT,
        "/admin/jsi18n/",
        "/admin/nowhere/",
    ):
        assert asking.get(address).headers["Location"].startswith(CODE)
    for address in (f"{ROOT}remove/", f"{ROOT}begin/", "/admin/auth/user/add/"):
        assert asking.post(address, {"code": code(ann)}).headers["Location"].startswith(CODE)
    with later(1):
        assert gets_in(asking, code(ann))


def test_a_code_works_once(ann: User, codes: list[str]) -> None:
    with later(1):
        used = code(ann)
        assert gets_in(asked(ann), used)
        assert not gets_in(asked(ann), used)
    assert not gets_in(asked(ann), code(ann))


def test_a_code_leads_to_the_wanted_page_of_this_site_only(ann: User, codes: list[str]) -> None:
    client = asked(ann, until="/admin/auth/user/?q=b")
    asking = client.get("/admin/auth/user/?q=b", follow=True)
    assert 'value="/admin/auth/user/?q=b"' in asking.text
    with later(1):
        answer = client.post(CODE, {"code": code(ann), "next": "https://elsewhere.example/"})
    assert answer.headers["Location"] == "/admin/"


def test_a_code_gives_the_session_a_new_key(ann: User, asking: Client) -> None:
    before = asking.session.session_key
    with later(1):
        assert gets_in(asking, code(ann))
    assert asking.session.session_key != before


def test_a_recovery_code_works_once_and_only_its_hash_is_stored(ann: User, codes: list[str]) -> None:
    first, second, third, *_ = codes
    assert gets_in(asked(ann), first.lower())
    assert not gets_in(asked(ann), first)
    assert (gets_in(asked(ann), second), RecoveryCode.objects.count()) == (True, 8)
    stored = {bytes(digest) for digest in RecoveryCode.objects.values_list("digest", flat=True)}
    assert hashlib.sha256(third.replace("-", "").encode()).digest() in stored


def test_new_recovery_codes_replace_the_previous_ones(page: Client, ann: User, codes: list[str]) -> None:
    with later(1):
        answer = page.post(f"{ROOT}recovery-codes/", {"code": code(ann)})
    renewed = RECOVERY_CODE.findall(answer.text)
    assert (len(renewed), set(renewed) & set(codes)) == (10, set())
    assert not gets_in(asked(ann), codes[0])
    assert gets_in(asked(ann), renewed[0])


def test_a_seed_is_stored_encrypted(page: Client, ann: User) -> None:
    page.post(f"{ROOT}begin/", {"password": PASSWORD})
    stored = bytes(execute("SELECT seed FROM accounts_secondfactor")[0][0])
    seed = SecondFactor.objects.get().seed
    assert seed.encode() not in stored
    assert base64.b32decode(seed) not in stored


def test_a_recovery_code_works_without_the_secret_key(page: Client, ann: User, monkeypatch: pytest.MonkeyPatch) -> None:
    codes = set_up(page, ann)
    monkeypatch.setattr(settings, "SECRET_KEY", "another-secret-key")
    client = asked(ann)
    assert "wrong" in client.post(CODE, {"code": "000000"}).text
    assert gets_in(client, codes[0])


def test_the_fifth_wrong_code_locks_for_a_minute(ann: User, asking: Client) -> None:
    for _ in range(MAX_FREE_FAILURES + 1):
        assert "wrong" in asking.post(CODE, {"code": "000000"}).text
    with later(1):
        refused = asking.post(CODE, {"code": code(ann)})
    assert (refused.status_code, 0 < int(refused.headers["Retry-After"]) <= 61) == (429, True)
    with later(3):
        assert gets_in(asking, code(ann))
    assert SecondFactor.objects.get().failures == 0


def test_a_first_code_is_not_guessed_either(page: Client, ann: User) -> None:
    page.post(f"{ROOT}begin/", {"password": PASSWORD})
    for _ in range(MAX_FREE_FAILURES + 1):
        page.post(f"{ROOT}confirm/", {"code": "000000"})
    assert page.post(f"{ROOT}confirm/", {"code": code(ann)}).status_code == 429
    assert len(set_up(page, ann)) == 10, "with the password, a new factor can be begun"


def test_pauses_double_up_to_six_hours() -> None:
    pauses = [pause_after(failures) for failures in (4, 5, 6, 7, 13, 14, 15, 10_000)]
    minutes = [pause and pause.total_seconds() / 60 for pause in pauses]
    assert minutes == [None, 1, 2, 4, 256, 360, 360, 360]
    assert dt.timedelta(minutes=360) == MAX_PAUSE


def test_a_refused_code_counts_neither_as_wrong_nor_as_used(ann: User, codes: list[str]) -> None:
    for _ in range(MAX_FREE_FAILURES + 1):
        assert prove(ann, "000000", now=NOW) == CodeCheck()
    assert prove(ann, "000000", now=NOW) == CodeCheck(locked_until=NOW + dt.timedelta(minutes=1))
    assert SecondFactor.objects.get().failures == MAX_FREE_FAILURES + 1
    recovery = set(RecoveryCode.objects.values_list("pk", flat=True))
    assert len(recovery) == 10


def test_removing_takes_a_code(page: Client, ann: User, codes: list[str]) -> None:
    page.post(f"{ROOT}remove/", {"code": "000000"})
    assert SecondFactor.objects.count() == 1
    with later(1):
        page.post(f"{ROOT}remove/", {"code": code(ann)})
    assert (SecondFactor.objects.count(), logged_in().get("/admin/").status_code) == (0, 200)


def test_a_person_has_one_second_factor(page: Client, ann: User, codes: list[str]) -> None:
    before = SecondFactor.objects.get().seed
    page.post(f"{ROOT}begin/", {"password": PASSWORD})
    page.post(f"{ROOT}confirm/", {"code": code(ann, steps=1)})
    assert SecondFactor.objects.get().seed == before


def test_a_required_second_factor_is_set_up_before_anything_else(monkeypatch: pytest.MonkeyPatch, ann: User) -> None:
    monkeypatch.setattr(settings, "SECOND_FACTOR_REQUIRED", True)
    client = logged_in()
    for address in ("/admin/", "/admin/auth/user/", "/admin/password_change/", CODE, f"{ROOT}remove/"):
        assert (address, client.get(address).headers.get("Location")) == (address, ROOT)
    assert "A second factor is required here" in client.get(ROOT).text
    set_up(client, ann)
    assert client.get("/admin/").status_code == 200


def test_logging_out_takes_no_code(asking: Client) -> None:
    asking.post("/admin/logout/")
    assert asking.get("/admin/").headers["Location"].startswith("/admin/login/")


def test_a_reset_by_a_superuser_is_in_the_history(ann: User, codes: list[str]) -> None:
    boss = admin_user("boss")
    client = logged_in("boss")
    address = f"/admin/auth/user/{ann.pk}/reset_second_factor/"
    assert "Verify who is asking" in client.get(address, headers={"HX-Request": "true"}).text
    client.post(address, {"_form_submitted": "on"})
    assert SecondFactor.objects.count() == 0
    entry = LogEntry.objects.filter(user=boss).get()
    assert (entry.object_id, entry.change_message) == (str(ann.pk), "Reset the second factor.")


def test_the_command_resets_a_second_factor(codes: list[str], ann: User, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO"):
        call_command("reset_second_factor", "ann", stdout=io.StringIO())
        call_command("reset_second_factor", "ann", stdout=io.StringIO())
    text = "Reset the second factor at the host."
    assert LogEntry.objects.filter(object_id=str(ann.pk), change_message=text).count() == 1
    told = [record.msg for record in caplog.records if isinstance(record.msg, dict)]
    assert [(event["event"], event["person"], event["what"]) for event in told] == [("accounts.changed", ann.pk, text)]
    assert logged_in().get("/admin/").status_code == 200
    with pytest.raises(CommandError, match="nobody with the name 'bob'"):
        call_command("reset_second_factor", "bob")


def test_a_user_manager_cannot_reset_or_take_over_a_superuser(ann: User, codes: list[str]) -> None:
    clerk = admin_user("clerk", is_superuser=False)
    clerk.user_permissions.set(Permission.objects.filter(content_type__app_label="auth"))
    client = logged_in("clerk")
    user = f"/admin/auth/user/{ann.pk}"
    for address in (f"{user}/reset_second_factor/", f"{user}/password/", f"{user}/delete/", f"{user}/change/"):
        assert (address, client.post(address, {"_form_submitted": "on"}).status_code) == (address, 403)
    assert client.get(f"{user}/password/").status_code == 403


def test_the_history_has_changes_without_secrets(page: Client, codes: list[str]) -> None:
    with later(1):
        page.post(f"{ROOT}remove/", {"code": codes[0]})
    told = list(LogEntry.objects.order_by("id").values_list("change_message", flat=True))
    assert told == ["Set up a second factor.", "Used a recovery code.", "Removed the second factor."]
