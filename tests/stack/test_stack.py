"""The whole stack with real processes, what `./broker up` prints, and Flower."""

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

import pytest
import requests
from django.core.exceptions import ImproperlyConfigured

from broker_project.stack import application
from broker_project.stack.application import Application, worker_count
from broker_project.stack.folders import ROOT, StackFolder, StackSettings
from broker_project.stack.load.wait import wait_until
from broker_project.stack.running_stack import Stack, running_stack
from broker_project.stack.stores import supervised
from broker_project.stack.up import addresses
from broker_project.stack.variables import variables
from tests.support.real_broker import TIMEOUT_SECONDS

WEB = "http://127.0.0.1:8002"

REMEMBERED = 200
TASKS = 12_000


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """A running stack with stores of its own."""
    with ExitStack() as until_the_end:
        with pytest.MonkeyPatch.context() as patch:
            for name in ("DATABASE_URL", "REDIS_URL"):
                patch.delenv(name, raising=False)
            started = until_the_end.enter_context(running_stack(tmp_path_factory.mktemp("stack"), durable=False))
        yield started


def status_of(url: str) -> int:
    return requests.get(url, timeout=TIMEOUT_SECONDS).status_code


@pytest.mark.faults
def test_all_services_answer(stack: Stack) -> None:
    addresses = ("/livez", "/admin/login/", "/api/docs/")
    assert [status_of(stack.web + address) for address in addresses] == [200] * 3
    assert status_of(stack.flower + "/healthcheck") == requests.codes.unauthorized  # nothing of it is open


@pytest.mark.faults
def test_broker_knows_its_public_url(stack: Stack) -> None:
    assert stack.environment["BROKER_PUBLIC_URL"] == stack.web
    assert status_of(stack.environment["BROKER_PUBLIC_URL"] + "/readyz") == 200


@pytest.mark.faults
def test_the_doctor_finds_every_part_of_a_stack_well(stack: Stack) -> None:
    wait_until(lambda: requests.get(f"{stack.web}/readyz", timeout=TIMEOUT_SECONDS).json()["beat"] == "ok")
    environment = {**os.environ, **stack.environment}
    command = [sys.executable, str(ROOT / "manage.py"), "doctor", "--no-color"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    parts = ("database", "migrations", "clock", "redis", "workers", "senders", "beat", "lines", "queues")
    lines = [line for line in done.stdout.splitlines() if line.split()[1].rstrip(":") in parts]
    assert sorted(lines) == sorted(f"ok    {part}" for part in parts), done.stdout + done.stderr


@pytest.mark.faults
@pytest.mark.behaviour("4.14", "6.2")
def test_flower_lists_every_queue(stack: Stack) -> None:
    name, _, password = stack.flower_login.partition(":")
    senders = {f"queue.{sender}" for sender in range(5)}
    queues = {"topic", "retry", *senders, "callbacks", "volatile", "maintenance"}

    def shown(path: str) -> requests.Response:
        return requests.get(stack.flower + path, auth=(name, password), timeout=TIMEOUT_SECONDS)

    def of_workers() -> list[set[str]]:
        workers = shown("/api/workers?refresh=1").json().values()
        return [{queue["name"] for queue in worker.get("active_queues", [])} for worker in workers]

    wait_until(lambda: sorted(of_workers(), key=len) == [{"analytics"}, *[queues] * worker_count()])
    page = shown("/broker").text
    assert [queue for queue in (*queues, "analytics") if f">{queue}<" not in page] == []
    assert f'<a href="{stack.web}/admin/delivery/line/">Lines</a>' in page


@pytest.mark.faults
def test_only_line_workers_run_lines(stack: Stack) -> None:
    wait_until(lambda: "worker.started" in stack.supervisor["worker1"].log.read_text())
    assert " ready." in stack.supervisor["analytics"].log.read_text()
    assert "worker.started" not in stack.supervisor["analytics"].log.read_text()


@pytest.mark.lengthy
@pytest.mark.faults
def test_beat_follows_the_schedule_in_the_database(stack: Stack) -> None:
    log = stack.supervisor["beat"].log
    wait_until(lambda: "Sending due task do chores (delivery.chores)" in log.read_text())
    assert "Traceback" not in log.read_text()


@pytest.mark.faults
@pytest.mark.parametrize("name", ["postgres", "redis", "web", "worker1"])
def test_killed_process_is_ready_again_under_its_name(stack: Stack, name: str) -> None:
    child = stack.supervisor[name]
    killed = child.pid
    child.kill()
    wait_until(lambda: child.pid not in {None, killed})
    wait_until(child.service.is_ready)


@pytest.mark.parametrize(("cores", "given", "workers"), [(1, {}, 1), (4, {}, 4), (2, {"BROKER_WORKERS": "3"}, 3)])
def test_a_stack_has_a_worker_per_core_or_as_many_as_are_wanted(
    cores: int, given: Mapping[str, str], workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(application, "usable_cores", lambda: cores)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    names = [service.name for service in Application({"REDIS_URL": ""}, 0, 0, "", "machine").services()]
    assert names == ["web", *(f"worker{number + 1}" for number in range(workers)), "analytics", "beat", "flower"]


@pytest.mark.parametrize(
    ("given", "site"),
    [
        ({}, WEB),
        ({"BROKER_DEVELOPMENT": ""}, "https://HOST"),
        ({"BROKER_DEVELOPMENT": "no"}, "https://HOST"),
        ({"BROKER_DEVELOPMENT": "0", "BROKER_PUBLIC_URL": "https://broker.example.org/"}, "https://broker.example.org"),
    ],
    ids=["development", "empty value", "no public URL", "behind a proxy"],
)
def test_addresses_use_the_public_url(
    given: dict[str, str], site: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("BROKER_DEVELOPMENT")
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    environment = variables(StackSettings(tmp_path / "stack.json", print), {}, 8002)
    with supervised(StackFolder(tmp_path)) as supervisor:
        stack = Stack(supervisor, environment, WEB, "http://127.0.0.1:5555", "", "admin:password", tmp_path)
        lines = addresses(stack).splitlines()
    of_the_proxy = [] if site == WEB else [f"  web     {WEB}   for the proxy in front of it"]
    admin = f"  admin   {site}/admin/   with the login that you created"
    assert lines[:-2] == [*of_the_proxy, admin, f"  API     {site}/api/docs/"]


def test_invalid_development_switch_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BROKER_DEVELOPMENT", "ja")
    with pytest.raises(ImproperlyConfigured, match=r"^BROKER_DEVELOPMENT is 'ja': set it to 1 or 0\.$"):
        variables(StackSettings(tmp_path / "stack.json", print), {}, 8002)


STORY = f"""
import time, uuid
from celery.events.state import State
from tornado.options import OptionParser

OptionParser().parse_config_file({str(ROOT / "broker_project" / "read_only_flower.py")!r})
state, clock = State(max_tasks_in_memory={REMEMBERED}), 0


def tell(kind, task, **fields):
    global clock
    clock, now = clock + 1, time.time()
    state.event(dict(type=kind, uuid=task, clock=clock, hostname="w", timestamp=now, local_received=now, **fields))


most = 0
for _ in range({TASKS}):
    task = str(uuid.uuid4())
    tell("task-received", task, name="delivery.turn.topic", root_id=task, parent_id=None)
    tell("task-succeeded", task, result="None", runtime=0.1)
    most = max(most, len(state.tasks_by_type["delivery.turn.topic"]))
print(most)
"""


def test_forgotten_tasks_leave_the_memory_of_flower() -> None:
    told = subprocess.run([sys.executable, "-c", STORY], capture_output=True, text=True, check=True)
    assert REMEMBERED <= int(told.stdout) < TASKS / 6
