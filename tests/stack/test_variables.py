"""Settings that are wrong are said in one line that names the variable."""

import os
import re
import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from django.core.exceptions import ImproperlyConfigured

from broker_project import environment, settings
from broker_project.stack import stacks
from broker_project.stack.folders import ROOT
from broker_project.stack.ports import any_free

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
    ("BROKER_DATABASE_POOL", "many"),
    ("BROKER_IDEMPOTENCY_KEY_HOURS", "-1"),
    ("BROKER_MAILBOX_DAYS", "99999999999"),
    ("BROKER_WEB_THREADS", "0"),
    ("BROKER_RETENTION_DAYS", "36501"),
    ("BROKER_REQUESTS_PER_MINUTE", "-1"),
    ("BROKER_FAILURES_PER_MINUTE", "ten"),
    ("BROKER_UPLOAD_SECONDS", "0"),
    ("BROKER_UPLOADS_MB", "15"),
    ("DATABASE_URL", "postgres//user:pass-word@host/broker"),
    ("DATABASE_URL", "postgres://user:pass-word@host:port/broker"),
    ("DATABASE_URL", "postgres://user:pass-word@host"),
    ("DATABASE_URL", "mysql://user:pass-word@host/broker"),
    ("REDIS_URL", "localhost:6379"),
    ("REDIS_URL", "redis://:pass-word@host:port/0"),
    ("REDIS_URL", "redis://:pass-word/with/slashes@host/0"),
    ("BROKER_ALLOWED_HOSTS", "broker.example.org,*"),
    ("BROKER_SECOND_FACTOR", "yes"),
    ("BROKER_PROXIES", "proxy.example.org"),
    ("BROKER_PROXIES", "10.0.0.1/8"),
    ("BROKER_PUBLIC_URL", "broker.example.org"),
    ("BROKER_PUBLIC_URL", "ftp://broker.example.org"),
    ("BROKER_PUBLIC_URL", "https://me:secret@broker.example.org"),
    ("BROKER_PUBLIC_URL", "https://broker.example.org/?a=b"),
    ("BROKER_PUBLIC_URL", "https://broker.example.org:0"),
    ("BROKER_ALLOWED_NETWORKS", "10.0.0.0/33"),
    ("BROKER_ALLOWED_NETWORKS", "10.0.0.1/8"),
    ("BROKER_ALLOWED_NETWORKS", "127.0.0.0/8;::1"),
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
def test_a_wrong_setting_is_named_in_one_line(name: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_in_development_any_secret_key_will_do(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {**VALID, "BROKER_DEVELOPMENT": "1", "BROKER_SECRET_KEY": "short"}.items():
        monkeypatch.setenv(name, value)
    assert runpy.run_path(settings.__file__)["SECRET_KEY"] == "short"


def test_nothing_but_that_line_is_printed() -> None:
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
        (
            lambda name: environment.matching(name, environment.SPARK_MASTER_URL, ""),
            "spark://a:1,b:1",
            "spark://a:1,b:1",
        ),
        (lambda name: environment.matching(name, environment.SPARK_MASTER_URL, ""), "local[*]", "local[*]"),
        (lambda name: environment.matching(name, environment.SPARK_MASTER_URL, ""), "yarn", "yarn"),
        (environment.lake, "", ""),
        (environment.lake, "/var/lib/lake:1@home", "/var/lib/lake:1@home"),
        (environment.lake, "s3a://bucket/lake:1@home", "s3a://bucket/lake:1@home"),
        (environment.lake, "hdfs://[::1]:8020/lake", "hdfs://[::1]:8020/lake"),
        (environment.lake, "abfss://container@account.example/lake", "abfss://container@account.example/lake"),
        (lambda name: environment.matching(name, environment.JAVA_MEMORY, ""), "900m", "900m"),
        (lambda name: environment.matching(name, environment.PERCENT, ""), "99.95", "99.95"),
        (lambda name: environment.number(name, least=2, default=20, most=30), "2", 2),
        (lambda name: environment.number(name, least=2, default=20, most=30), "30", 30),
        (lambda name: environment.one_of(name, ("a", "b"), "a"), "b", "b"),
        (lambda name: environment.database(name)["NAME"], "postgresql:///broker?sslmode=disable", "broker"),
        (environment.redis_address, "rediss://host/0", "rediss://host/0"),
        (lambda name: environment.web_address(name, ""), "https://host:8443/behind/", "https://host:8443/behind"),
        (lambda name: environment.web_address(name, ""), "http://[::1]:80", "http://[::1]:80"),
        (lambda name: environment.hosts_of(environment.web_address(name, "")), "http://[::1]:80", ["[::1]"]),
        (lambda name: environment.hosts_of(environment.web_address(name, "")), "https://Host/x", ["host"]),
        (lambda name: environment.hosts_of(environment.web_address(name, "")), "", []),
    ],
)
def test_what_is_right_is_taken(
    read: Callable[[str], object], value: str, expected: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("A_VARIABLE", value)
    assert read("A_VARIABLE") == expected


@pytest.mark.parametrize("value", ["", "1", "31", "-2", "2.5", "²", "2" * 5000], ids=lambda value: value[:9])
def test_a_number_has_to_be_one_that_there_is_room_for(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_VARIABLE", value)
    with pytest.raises(ImproperlyConfigured, match=r"^A_VARIABLE is .*: set it to a whole number from 2 to 30\.$"):
        environment.number("A_VARIABLE", least=2, default=20, most=30)


@pytest.mark.parametrize(("value", "expected"), [("", "[]"), ("former,the one before", "['former', 'the one before']")])
def test_former_secrets_are_separated_by_commas(value: str, expected: str) -> None:
    answer = subprocess.run(
        [sys.executable, "-c", "from django.conf import settings; print(settings.SECRET_KEY_FALLBACKS)"],
        env={**VALID, "BROKER_SECRET_KEY_FALLBACKS": value, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert answer.stdout.strip() == expected


def test_a_database_that_does_not_answer_is_said_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATABASE_URL", f"postgres://user:pass-word@127.0.0.1:{any_free()}/broker")
    monkeypatch.setenv("REDIS_URL", os.environ["REDIS_URL"])
    assert refusal_to_start(tmp_path).startswith("the database of DATABASE_URL cannot be reached: ")


def test_a_redis_that_does_not_answer_is_said_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REDIS_URL", f"redis://:pass-word@127.0.0.1:{any_free()}/0")
    assert refusal_to_start(tmp_path).startswith("the Redis of REDIS_URL cannot be reached: ")


def test_a_redis_that_has_another_password_is_said_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REDIS_URL", re.sub("//.*@", "//:pass-word@", os.environ["REDIS_URL"]))
    assert refusal_to_start(tmp_path).startswith("the Redis of REDIS_URL cannot be reached: ")


def refusal_to_start(folder: Path) -> str:
    """Return the one line in which a stack says why it does not start."""
    with pytest.raises(stacks.SetUpFailed) as failure, stacks.running(folder):
        pass
    message = str(failure.value)
    assert "\n" not in message
    assert "pass-word" not in message
    return message


def test_a_variable_that_has_to_be_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("REDIS_URL")
    with pytest.raises(ImproperlyConfigured, match=r"^REDIS_URL is not set: set it to redis://"):
        environment.redis_address("REDIS_URL")
