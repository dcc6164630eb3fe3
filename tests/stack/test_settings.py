"""Wrong settings and secret keys are refused in one line that names the variable."""

import os
import re
import runpy
import subprocess
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import pytest
from django.core.exceptions import ImproperlyConfigured

from broker_project import environment, settings
from broker_project.stack import running_stack as stack_module
from broker_project.stack import up
from broker_project.stack.folders import ROOT, AlreadyRunning, StackError, StackFolder, StackSettings, locked
from broker_project.stack.ports import any_free
from broker_project.stack.running_stack import running_stack
from broker_project.stack.secret_keys import LAST, WrongSecretKey, check_start_key, store_key

FIRST = "first secret key"
OTHER = "other secret key"
NAMES = ("BROKER_SECRET_KEY", "BROKER_SECRET_KEY_FALLBACKS", "DATABASE_URL")


KEPT: dict[str, str] = {}
"""Nothing is set: the stack chooses a key and keeps it."""

VALID = {
    "BROKER_SECRET_KEY": "pass-word-of-fifty-characters-that-nobody-can-guess",
    "DATABASE_URL": "postgres://user:password@127.0.0.1/broker",
    "REDIS_URL": "redis://127.0.0.1/0",
    "DJANGO_SETTINGS_MODULE": "broker_project.settings",
}
WRONG = [
    ("BROKER_SECRET_KEY", ""),
    ("BROKER_SECRET_KEY", "pass-word of only as many as 49 random characters"),
    ("BROKER_SECRET_KEY", "abcd" * 13),
    ("BROKER_DEVELOPMENT", "ja"),
    ("BROKER_LOG_LEVEL", "LOUD"),
    ("BROKER_LOG_FORMAT", "xml"),
    ("BROKER_DATABASE_POOL", "1"),
    ("BROKER_RETENTION_DAYS", "36501"),
    ("BROKER_REQUESTS_PER_MINUTE", "-1"),
    ("BROKER_UPLOADS_MB", "15"),
    ("BROKER_MAX_DELIVERIES", "0"),
    ("DATABASE_URL", "postgres//user:pass-word@host/broker"),
    ("DATABASE_URL", "postgres://user:pass-word@host:port/broker"),
    ("DATABASE_URL", "postgres://user:pass-word@host"),
    ("DATABASE_URL", "mysql://user:pass-word@host/broker"),
    ("REDIS_URL", "localhost:6379"),
    ("REDIS_URL", "redis://:pass-word@host:port/0"),
    ("REDIS_URL", "redis://:pass-word/with/slashes@host/0"),
    ("BROKER_ALLOWED_HOSTS", "broker.example.org,*"),
    ("BROKER_ALLOWED_HOSTS", "https://broker.example.org"),
    ("BROKER_ALLOWED_HOSTS", "broker.example.org:8443"),
    ("BROKER_ALLOWED_HOSTS", "broker.example.org."),
    ("BROKER_ALLOWED_HOSTS", "127.0.0.1,::1"),
    ("BROKER_SECOND_FACTOR", "yes"),
    ("BROKER_PORTAL_ORIGINS", "https://app.example.org,https://admin.example.org/"),
    ("BROKER_PROXIES", "proxy.example.org"),
    ("BROKER_PROXIES", "10.0.0.1/8"),
    ("BROKER_PUBLIC_URL", "broker.example.org"),
    ("BROKER_PUBLIC_URL", "ftp://broker.example.org"),
    ("BROKER_PUBLIC_URL", "https://me:secret@broker.example.org"),
    ("BROKER_PUBLIC_URL", "https://broker.example.org/?a=b"),
    ("BROKER_PUBLIC_URL", "https://broker.example.org:0"),
    ("BROKER_ALLOWED_NETWORKS", "10.0.0.0/33"),
    ("BROKER_ALLOWED_NETWORKS", "127.0.0.0/8,localhost"),
    ("BROKER_LAKE", "lake"),
    ("BROKER_LAKE", "s3a://key:pass-word@bucket/lake"),
    ("BROKER_LAKE", "s3a://key:pass-word/with/slashes@bucket/lake"),
    ("BROKER_LAKE", "hdfs://me:0000pass-word@namenode:8020/lake"),
    ("BROKER_SUMMARIES", "1"),
    ("BROKER_OBJECTIVE_PERCENT", "100"),
    ("BROKER_SPARK_MASTER", "host:7077"),
    ("BROKER_SPARK_MASTER", "local[0]"),
    ("BROKER_SPARK_MEMORY", "1 GB"),
]


@pytest.mark.parametrize(("name", "value"), WRONG)
def test_invalid_setting_is_reported_in_one_line(name: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for known in [known for known in os.environ if known.startswith("BROKER_")]:
        monkeypatch.delenv(known)
    for known, right in {**VALID, name: value}.items():
        monkeypatch.setenv(known, right)
    with pytest.raises(ImproperlyConfigured) as failure:
        runpy.run_path(settings.__file__)
    message = str(failure.value)
    assert message.startswith(f"{name} is ")
    assert "set it to" in message
    assert "\n" not in message
    assert "pass-word" not in message


def test_development_accepts_a_short_secret_key(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {**VALID, "BROKER_DEVELOPMENT": "1", "BROKER_SECRET_KEY": "short"}.items():
        monkeypatch.setenv(name, value)
    assert runpy.run_path(settings.__file__)["SECRET_KEY"] == "short"


def test_options_of_the_database_address_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    address = f"{VALID['DATABASE_URL']}?sslmode=require&connect_timeout=9&options=-c%20search_path%3Dmine"
    for name, value in {**VALID, "DATABASE_URL": address}.items():
        monkeypatch.setenv(name, value)
    options = runpy.run_path(settings.__file__)["DATABASES"]["default"]["OPTIONS"]
    assert (options["sslmode"], options["connect_timeout"], options["tcp_user_timeout"]) == ("require", 9, 10_000)
    assert options["options"].startswith("-c search_path=mine -c statement_timeout=")


def test_manage_prints_only_the_error_line() -> None:
    answer = subprocess.run(
        [sys.executable, ROOT / "manage.py", "check"],
        env={**VALID, "REDIS_URL": "localhost:6379"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (answer.returncode, answer.stdout, answer.stderr.count("\n")) == (1, "", 1)
    assert answer.stderr.startswith("broker: REDIS_URL is ")


@pytest.mark.parametrize(
    ("read", "value", "expected"),
    [
        (environment.switch, "", False),
        (environment.switch, "TRUE", True),
        (lambda name: environment.switch(name, default=True), "", True),
        (lambda name: environment.switch(name, default=True), "no", False),
        (lambda name: environment.matching(name, environment.SPARK_MASTER_URL, "local[1]"), "", "local[1]"),
        *(
            (partial(environment.matching, pattern=environment.SPARK_MASTER_URL, default=""), master, master)
            for master in ("spark://a:1,b:1", "local[*]", "yarn")
        ),
        (environment.lake, "", ""),
        (environment.lake, "/var/lib/lake:1@home", "/var/lib/lake:1@home"),
        (environment.lake, "s3a://bucket/lake:1@home", "s3a://bucket/lake:1@home"),
        (environment.lake, "hdfs://[::1]:8020/lake", "hdfs://[::1]:8020/lake"),
        (environment.lake, "abfss://container@account.example/lake", "abfss://container@account.example/lake"),
        (lambda name: environment.matching(name, environment.JAVA_MEMORY, ""), "900m", "900m"),
        (lambda name: environment.matching(name, environment.PERCENT, ""), "99.95", "99.95"),
        (lambda name: environment.number(name, minimum=2, default=20, maximum=30), "2", 2),
        (lambda name: environment.number(name, minimum=2, default=20, maximum=30), "30", 30),
        (lambda name: environment.one_of(name, ("a", "b"), "a"), "b", "b"),
        (lambda name: environment.database(name)["NAME"], "postgresql:///broker?sslmode=disable", "broker"),
        (environment.redis_address, "rediss://host/0", "rediss://host/0"),
        (lambda name: environment.web_address(name, ""), "https://host:8443/behind/", "https://host:8443/behind"),
        (lambda name: environment.web_address(name, ""), "http://[::1]:80", "http://[::1]:80"),
        (lambda name: environment.hosts_of(environment.web_address(name, "")), "http://[::1]:80", ["[::1]"]),
        (lambda name: environment.hosts_of(environment.web_address(name, "")), "https://Host/x", ["host"]),
        (lambda name: environment.hosts_of(environment.web_address(name, "")), "", []),
        (partial(environment.listed, pattern=environment.HOST_NAME), "a, .b.org,[::1]", ["a", ".b.org", "[::1]"]),
        (partial(environment.listed, pattern=environment.HOST_NAME, default=["localhost"]), "", []),
        (partial(environment.listed, pattern=environment.ANYTHING), "former, older", ["former", "older"]),
    ],
)
def test_valid_value_is_read(
    read: Callable[[str], object], value: str, expected: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("A_VARIABLE", value)
    assert read("A_VARIABLE") == expected


@pytest.mark.parametrize("value", ["", "1", "31", "-2", "2.5", "²", "2" * 5000], ids=lambda value: value[:9])
def test_number_outside_its_range_is_refused(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_VARIABLE", value)
    with pytest.raises(ImproperlyConfigured, match=r"^A_VARIABLE is .*: set it to a whole number from 2 to 30\.$"):
        environment.number("A_VARIABLE", minimum=2, default=20, maximum=30)


@pytest.mark.parametrize(("value", "expected"), [("", []), ("former,the one before", ["former", "the one before"])])
def test_secret_key_fallbacks_are_separated_by_commas(
    value: str, expected: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, given in {**VALID, "BROKER_SECRET_KEY_FALLBACKS": value}.items():
        monkeypatch.setenv(name, given)
    assert runpy.run_path(settings.__file__)["SECRET_KEY_FALLBACKS"] == expected


@pytest.mark.parametrize(
    ("name", "scheme", "server", "user"),
    [("DATABASE_URL", "postgres", "database", "no UTF-8: \udcff"), ("REDIS_URL", "redis", "Redis", "user")],
)
def test_unreachable_store_is_reported_in_one_line(
    name: str, scheme: str, server: str, user: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, f"{scheme}://{user}:pass-word@127.0.0.1:{any_free()}/0")
    assert refusal_to_start(tmp_path).startswith(f"the {server} of {name} cannot be reached: ")


def test_wrong_redis_password_is_reported_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REDIS_URL", re.sub("//.*@", "//:pass-word@", os.environ["REDIS_URL"]))
    assert refusal_to_start(tmp_path).startswith("the Redis of REDIS_URL cannot be reached: ")


def refusal_to_start(folder: Path) -> str:
    """Return the one line in which a stack says why it does not start."""
    with pytest.raises(StackError) as failure, running_stack(folder):
        pass
    message = str(failure.value)
    assert "\n" not in message
    assert "pass-word" not in message
    return message


def test_missing_required_variable_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("REDIS_URL")
    with pytest.raises(ImproperlyConfigured, match=r"^REDIS_URL is not set: set it to redis://"):
        environment.redis_address("REDIS_URL")


Given = Callable[[Mapping[str, str]], None]


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch) -> Given:
    """Set what a terminal has set, for the commands that follow in it."""

    def set_only(variables: Mapping[str, str]) -> None:
        for name in NAMES:
            monkeypatch.delenv(name, raising=False)
        for name, value in variables.items():
            monkeypatch.setenv(name, value)

    return set_only


def start(folder: Path) -> None:
    """Do with the keys what a start does."""
    kept = StackSettings(StackFolder(folder).settings, print)
    check_start_key(kept)
    store_key(kept, LAST)


def in_one_line(refusal: pytest.ExceptionInfo[WrongSecretKey]) -> str:
    message = str(refusal.value)
    assert "\n" not in message
    assert FIRST not in message
    assert OTHER not in message
    return message


@pytest.mark.parametrize(
    ("last", "next_one"),
    [
        (KEPT, KEPT),
        ({"BROKER_SECRET_KEY": FIRST}, {"BROKER_SECRET_KEY": FIRST}),
        (
            {"BROKER_SECRET_KEY": FIRST},
            {"BROKER_SECRET_KEY": OTHER, "BROKER_SECRET_KEY_FALLBACKS": f"one before,{FIRST}"},
        ),
        ({"BROKER_SECRET_KEY": FIRST}, {"BROKER_SECRET_KEY": OTHER, "DATABASE_URL": "postgres://u:p@own/broker"}),
    ],
    ids=["kept", "the same", "the last as a fallback", "another database"],
)
def test_stack_starts_with_a_key_that_opens_stored_secrets(
    last: Mapping[str, str], next_one: Mapping[str, str], given: Given, tmp_path: Path
) -> None:
    given(last)
    start(tmp_path)
    given(next_one)
    start(tmp_path)


@pytest.mark.parametrize(
    ("last", "next_one", "message"),
    [
        (KEPT, {"BROKER_SECRET_KEY": OTHER}, "BROKER_SECRET_KEY is not the key of the last start"),
        ({"BROKER_SECRET_KEY": FIRST}, KEPT, "BROKER_SECRET_KEY is not set, and the key stored in "),
        (
            {"BROKER_SECRET_KEY": FIRST},
            {"BROKER_SECRET_KEY": OTHER, "BROKER_SECRET_KEY_FALLBACKS": "another,"},
            "BROKER_SECRET_KEY is not the key of the last start",
        ),
        (
            {"BROKER_SECRET_KEY": FIRST, "DATABASE_URL": "postgres://u:p@own/broker"},
            {"BROKER_SECRET_KEY": OTHER, "DATABASE_URL": "postgres://u:changed@own/broker?sslmode=require"},
            "BROKER_SECRET_KEY is not the key of the last start",
        ),
    ],
    ids=["instead of the kept one", "kept instead", "not among the fallbacks", "the same database"],
)
def test_stack_refuses_a_key_that_opens_nothing(
    last: Mapping[str, str], next_one: Mapping[str, str], message: str, given: Given, tmp_path: Path
) -> None:
    given(last)
    start(tmp_path)
    given(next_one)
    with pytest.raises(WrongSecretKey) as refusal, running_stack(tmp_path):
        pass
    assert in_one_line(refusal).startswith(message)
    assert not (tmp_path / "postgres").exists()


def test_refused_key_is_not_remembered(given: Given, tmp_path: Path) -> None:
    given({"BROKER_SECRET_KEY": FIRST})
    start(tmp_path)
    given({"BROKER_SECRET_KEY": OTHER})
    with pytest.raises(WrongSecretKey):
        start(tmp_path)
    given({"BROKER_SECRET_KEY": FIRST})
    start(tmp_path)


def test_own_key_is_not_stored(given: Given, tmp_path: Path) -> None:
    given({"BROKER_SECRET_KEY": FIRST, "DATABASE_URL": "postgres://u:pass-word@own/broker"})
    start(tmp_path)
    kept = StackFolder(tmp_path).settings.read_text()
    assert (FIRST in kept, "pass-word" in kept, '"secret key"' in kept) == (False, False, False)


@pytest.fixture
def own_stores(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Mapping[str, str]:
    """The folder of `./broker up`, for a stack beside stores that are there."""
    monkeypatch.setattr(up, "STATE", tmp_path)
    StackSettings(StackFolder(tmp_path).settings, print).port("web")
    return {"DATABASE_URL": "postgres://user:password@127.0.0.1/broker"}


def test_manage_takes_the_key_of_the_running_stack_also_before_it_is_set_up(
    given: Given, tmp_path: Path, own_stores: Mapping[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    new = {**own_stores, "BROKER_SECRET_KEY": OTHER, "BROKER_SECRET_KEY_FALLBACKS": FIRST}
    former = {**own_stores, "BROKER_SECRET_KEY": FIRST}
    given(former)
    start(tmp_path)

    def set_up(*_: object) -> bool:
        for given_now in (former, own_stores):
            given(given_now)
            with pytest.raises(WrongSecretKey, match="not the key of the running stack") as refusal:
                up.manage("rotate_keys", "--check")
            assert "as for ./broker up" in in_one_line(refusal)
        given(new)
        assert up.manage("check") == 0
        raise StackError("set-up fails")

    monkeypatch.setattr(stack_module, "_set_up", set_up)
    given(new)
    with pytest.raises(StackError, match="set-up fails"), running_stack(tmp_path):
        pass
    given(former)
    assert up.manage("check") == 0


def test_second_start_is_told_of_the_running_stack(given: Given, tmp_path: Path, own_stores: Mapping[str, str]) -> None:
    given({**own_stores, "BROKER_SECRET_KEY": FIRST})
    start(tmp_path)
    kept = StackFolder(tmp_path).settings.read_text()
    given(own_stores)
    with locked(StackFolder(tmp_path).lock), pytest.raises(AlreadyRunning), running_stack(tmp_path):
        pass
    assert StackFolder(tmp_path).settings.read_text() == kept


def test_manage_refuses_keys_of_no_start(given: Given, tmp_path: Path, own_stores: Mapping[str, str]) -> None:
    given({**own_stores, "BROKER_SECRET_KEY": FIRST})
    start(tmp_path)
    given({**own_stores, "BROKER_SECRET_KEY": OTHER, "BROKER_SECRET_KEY_FALLBACKS": FIRST})
    with pytest.raises(WrongSecretKey) as refusal:
        up.manage("rotate_keys")
    assert in_one_line(refusal).startswith("BROKER_SECRET_KEY is not the key of the last start")
    given({**own_stores, "BROKER_SECRET_KEY": FIRST})
    assert up.manage("check") == 0
