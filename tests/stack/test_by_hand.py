"""What people type in an activated environment, without `./broker`."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from django.core.exceptions import ImproperlyConfigured
from structlog.testing import capture_logs

from broker_project import wsgi
from broker_project.stack import variables
from broker_project.stack.application import celery
from broker_project.stack.folders import ROOT, StackFolder, StackSettings, locked
from broker_project.stack.load.wait import wait_until
from broker_project.stack.ports import any_free

REDIS = "redis://:password@127.0.0.1:7/0"
CHANGED = (
    *("BROKER_SECRET_KEY", "BROKER_ALLOWED_HOSTS", "BROKER_PUBLIC_URL", "BROKER_DEVELOPMENT", "BROKER_LAKE"),
    *("BROKER_ALLOWED_NETWORKS", "BROKER_LOG_FORMAT", "DJANGO_SETTINGS_MODULE", "DATABASE_URL", "REDIS_URL"),
    "FLOWER_BASIC_AUTH",
)
PLAIN = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
"""An environment in which nothing is set."""


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch) -> Callable[[Mapping[str, str]], None]:
    """Set only these variables; afterwards all are as before."""

    def set_only(given: Mapping[str, str]) -> None:
        for name in CHANGED:
            monkeypatch.setenv(name, "")
            monkeypatch.delenv(name)
        for name, value in given.items():
            monkeypatch.setenv(name, value)

    return set_only


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StackFolder:
    """Return the folder of a stack that has run before."""
    monkeypatch.setattr(variables, "STATE", tmp_path)
    folder = StackFolder(tmp_path)
    settings = StackSettings(folder.settings, print)
    for number, name in enumerate(("web", "PostgreSQL", "Redis"), start=7001):
        settings.store(name, str(number))
    return folder


@pytest.fixture
def running(folder: StackFolder) -> Iterator[None]:
    """Let the stack run."""
    with locked(folder.lock):
        yield


@pytest.mark.parametrize(
    ("set_by_user", "redis"),
    [({}, 7003), ({"BROKER_DEVELOPMENT": "1"}, 7003), ({"BROKER_DEVELOPMENT": "1", "REDIS_URL": REDIS}, 7)],
)
def test_what_is_missing_is_taken_from_the_running_stack(
    running: None, given: Callable[[Mapping[str, str]], None], set_by_user: dict[str, str], redis: int
) -> None:
    given(set_by_user)
    variables.set_development_defaults()
    ports = [urlsplit(os.environ[name]).port for name in ("DATABASE_URL", "REDIS_URL", "BROKER_PUBLIC_URL")]
    assert ports == [7002, redis, 7001]
    assert os.environ["BROKER_DEVELOPMENT"] == "1"
    assert len(os.environ["BROKER_SECRET_KEY"]) >= 50
    assert os.environ["FLOWER_BASIC_AUTH"].startswith("admin:")


@pytest.mark.parametrize("set_by_user", [{"BROKER_DEVELOPMENT": "0"}, {"REDIS_URL": REDIS}])
def test_nothing_is_taken_in_production(
    running: None, given: Callable[[Mapping[str, str]], None], set_by_user: dict[str, str]
) -> None:
    given(set_by_user)
    variables.set_development_defaults()
    assert {name: os.environ[name] for name in CHANGED if name in os.environ} == set_by_user


def test_without_a_running_stack_one_line_says_what_to_do(
    folder: StackFolder, given: Callable[[Mapping[str, str]], None]
) -> None:
    given({})
    with pytest.raises(ImproperlyConfigured, match=r"^BROKER_SECRET_KEY is not set: start \./broker up .*$"):
        variables.set_development_defaults()


@pytest.mark.parametrize("command", [(sys.executable, "manage.py", "check"), celery("worker"), celery("flower")])
def test_a_missing_setting_is_said_in_one_line(command: tuple[str, ...]) -> None:
    ended = subprocess.run(
        command, cwd=ROOT, env={**PLAIN, "BROKER_DEVELOPMENT": "0"}, capture_output=True, text=True, check=False
    )
    (line,) = ended.stderr.splitlines()
    assert (ended.returncode, ended.stdout, line.startswith("broker: BROKER_SECRET_KEY is not set:")) == (1, "", True)


def test_a_worker_with_another_pool_is_refused() -> None:
    ended = subprocess.run(celery("worker", "--pool=processes"), cwd=ROOT, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr.splitlines()[-1]) == (
        1,
        "broker: a worker needs a pool of threads, as the settings have it: leave -P out, and say how many with -c.",
    )


def test_tests_need_nothing_that_runs() -> None:
    ended = subprocess.run(
        (sys.executable, "manage.py", "test", "tests/unit/delivery/test_outcomes.py", "-k", "legal"),
        cwd=ROOT,
        env={**PLAIN, "BROKER_DEVELOPMENT": "0"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ended.returncode, ended.stderr) == (0, "")


@pytest.mark.behaviour("2.3")
def test_runserver_says_that_it_drops_the_header(tmp_path: Path) -> None:
    log = tmp_path / "log"
    command = (sys.executable, "manage.py", "runserver", "--noreload", str(any_free()))
    with log.open("w") as output, subprocess.Popen(command, cwd=ROOT, stdout=output, stderr=output) as server:
        try:
            wait_until(lambda: "web.filter_string_dropped" in log.read_text(), saying=log.read_text)
        finally:
            server.terminate()


@pytest.mark.behaviour("2.3")
@pytest.mark.parametrize(
    ("module", "options", "server"),
    [
        ("gunicorn", (), "gunicorn"),
        ("gunicorn", ("--forwarder-headers", "SCRIPT_NAME,PATH_INFO,FILTER_STRING"), None),
        ("gunicorn", ("--header-map=dangerous",), None),
        ("waitress", (), "waitress"),
        ("granian", (), None),
    ],
)
def test_a_server_that_drops_the_header_is_named(
    monkeypatch: pytest.MonkeyPatch, module: str, options: tuple[str, ...], server: str | None
) -> None:
    monkeypatch.setitem(sys.modules, module, sys.modules[__name__])
    monkeypatch.setattr(sys, "argv", [module, *options])
    with capture_logs() as logs:
        wsgi.warn_of_server()
    assert [entry["server"] for entry in logs] == ([server] if server else [])
