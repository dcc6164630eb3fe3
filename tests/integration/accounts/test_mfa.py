"""The second factor: set up, asked for, used up, required, reset."""

import base64
import datetime as dt
import hashlib
import io
import re

import pytest
import time_machine
from axes.models import AccessAttempt
from django.conf import settings
from django.contrib.admin.models import LogEntry
from django.contrib.auth.hashers import PBKDF2PasswordHasher
from django.contrib.auth.models import Permission, User
from django.core.management import CommandError, call_command
from django.test import Client
from django_otp.oath import totp

from broker_project.accounts.login_throttle import MAX_PER_NAME
from broker_project.accounts.mfa import MAX_FREE_FAILURES, MAX_PAUSE, CodeCheck, pause_after, prove
from broker_project.accounts.models import RecoveryCode, SecondFactor
from tests.support.admin import PASSWORD, admin_user, browser_at, log_in
from tests.support.database import execute

pytestmark = pytest.mark.django_db

ROOT = "/admin/second-factor/"
CODE = f"{ROOT}code/"
NOW = dt.datetime(2026, 11, 22, 12, 0, tzinfo=dt.UTC)
RECOVERY_CODE = re.compile(r"<li>((?:[A-Z2-7]{4}-?){4})</li>")


@pytest.fixture(autouse=True)
def quick_passwords(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PBKDF2PasswordHasher, "iterations", 1_000)


@pytest.fixture
def ann() -> User:
    return admin_user()


@pytest.fixture
def page(ann: User) -> Client:
    """A browser in which Ann has logged in."""
    client = browser_at()
    log_in(client)
    return client


def code(user: User, *, steps: int = 0) -> str:
    """Return what the app shows so many steps from now."""
    seed = base64.b32decode(SecondFactor.objects.get(user=user).seed)
    return f"{totp(seed, drift=steps):06}"


def set_up(client: Client, user: User) -> list[str]:
    """Set it up as people do; return the recovery codes."""
    client.post(f"{ROOT}begin/", {"password": PASSWORD})
    shown = client.post(f"{ROOT}confirm/", {"code": code(user)})
    return RECOVERY_CODE.findall(shown.content.decode())


def asked(user: User, *, until: str = "/admin/") -> Client:
    """Return another browser, in which the password was right."""
    client = browser_at()
    assert log_in(client, user.username).status_code == 302
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


def browser_of(user: User) -> Client:
    client = browser_at()
    log_in(client, user.username)
    return client


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
    assert seed in shown.content.decode()
    assert "<svg" in shown.content.decode()
    wrong = page.post(f"{ROOT}confirm/", {"code": "000000"})
    for answer in (wrong, page.get(ROOT), page.get("/admin/"), page.get(f"{ROOT}begin/", follow=True)):
        assert seed not in answer.content.decode()
    assert seed not in str(dict(page.session))


def test_a_second_factor_takes_effect_with_its_first_code(page: Client, ann: User) -> None:
    page.post(f"{ROOT}begin/", {"password": PASSWORD})
    assert page.get("/admin/").status_code == 200
    assert browser_of(ann).get("/admin/").status_code == 200
    assert len(RECOVERY_CODE.findall(page.post(f"{ROOT}confirm/", {"code": code(ann)}).content.decode())) == 10
    assert page.get("/admin/").status_code == 200


def test_setting_up_takes_the_password(page: Client, ann: User) -> None:
    answer = page.post(f"{ROOT}begin/", {"password": "wrong"})
    assert ("This is not your password." in answer.content.decode(), SecondFactor.objects.count()) == (True, 0)
    for _ in range(4):
        page.post(f"{ROOT}begin/", {"password": "wrong"})
    assert page.post(f"{ROOT}begin/", {"password": PASSWORD}).status_code == 429


def test_the_right_password_does_not_count_as_a_failed_login(page: Client, ann: User) -> None:
    for _ in range(MAX_PER_NAME + 1):
        assert page.post(f"{ROOT}begin/", {"password": PASSWORD}).status_code == 200
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


def test_earlier_sessions_are_asked_for_a_code_too(page: Client, ann: User) -> None:
    before = browser_of(ann)
    set_up(page, ann)
    assert before.get("/admin/").headers["Location"].startswith(CODE)


def test_a_code_works_once(ann: User, codes: list[str]) -> None:
    with later(1):
        used = code(ann)
        assert gets_in(asked(ann), used)
        assert not gets_in(asked(ann), used)
    assert not gets_in(asked(ann), code(ann))


def test_a_code_leads_to_the_wanted_page_of_this_site_only(ann: User, codes: list[str]) -> None:
    client = asked(ann, until="/admin/auth/user/?q=b")
    asking = client.get("/admin/auth/user/?q=b", follow=True)
    assert 'value="/admin/auth/user/?q=b"' in asking.content.decode()
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
    renewed = RECOVERY_CODE.findall(answer.content.decode())
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
    assert "wrong" in client.post(CODE, {"code": "000000"}).content.decode()
    assert gets_in(client, codes[0])


def test_the_fifth_wrong_code_locks_for_a_minute(ann: User, asking: Client) -> None:
    for _ in range(MAX_FREE_FAILURES + 1):
        assert "wrong" in asking.post(CODE, {"code": "000000"}).content.decode()
    with later(1):
        refused = asking.post(CODE, {"code": code(ann)})
    assert (refused.status_code, 0 < int(refused.headers["Retry-After"]) <= 61) == (429, True)
    with later(3):
        assert gets_in(asking, code(ann))
    assert SecondFactor.objects.get().failures == 0


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
    assert (SecondFactor.objects.count(), browser_of(ann).get("/admin/").status_code) == (0, 200)


def test_a_person_has_one_second_factor(page: Client, ann: User, codes: list[str]) -> None:
    before = SecondFactor.objects.get().seed
    page.post(f"{ROOT}begin/", {"password": PASSWORD})
    page.post(f"{ROOT}confirm/", {"code": code(ann, steps=1)})
    assert SecondFactor.objects.get().seed == before


def test_a_required_second_factor_is_set_up_before_anything_else(monkeypatch: pytest.MonkeyPatch, ann: User) -> None:
    monkeypatch.setattr(settings, "SECOND_FACTOR_REQUIRED", True)
    client = browser_of(ann)
    for address in ("/admin/", "/admin/auth/user/", "/admin/password_change/", CODE, f"{ROOT}remove/"):
        assert (address, client.get(address).headers.get("Location")) == (address, ROOT)
    assert "A second factor is required here" in client.get(ROOT).content.decode()
    set_up(client, ann)
    assert client.get("/admin/").status_code == 200


def test_logging_out_takes_no_code(asking: Client) -> None:
    asking.post("/admin/logout/")
    assert asking.get("/admin/").headers["Location"].startswith("/admin/login/")


def test_a_reset_by_a_superuser_is_in_the_history(ann: User, codes: list[str]) -> None:
    boss = admin_user("boss")
    client = browser_of(boss)
    address = f"/admin/auth/user/{ann.pk}/reset_second_factor/"
    assert "Verify who is asking" in client.get(address, headers={"HX-Request": "true"}).content.decode()
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
    assert browser_of(ann).get("/admin/").status_code == 200
    with pytest.raises(CommandError, match="nobody with the name 'bob'"):
        call_command("reset_second_factor", "bob")


def test_a_user_manager_cannot_reset_or_take_over_a_superuser(ann: User, codes: list[str]) -> None:
    clerk = admin_user("clerk", is_superuser=False)
    clerk.user_permissions.set(Permission.objects.filter(content_type__app_label="auth"))
    client = browser_of(clerk)
    user = f"/admin/auth/user/{ann.pk}"
    for address in (f"{user}/reset_second_factor/", f"{user}/password/", f"{user}/delete/", f"{user}/change/"):
        assert (address, client.post(address, {"_form_submitted": "on"}).status_code) == (address, 403)
    assert client.get(f"{user}/password/").status_code == 403


def test_the_history_has_changes_without_secrets(page: Client, codes: list[str]) -> None:
    with later(1):
        page.post(f"{ROOT}remove/", {"code": codes[0]})
    told = list(LogEntry.objects.order_by("id").values_list("change_message", flat=True))
    assert told == ["Set up a second factor.", "Used a recovery code.", "Removed the second factor."]
