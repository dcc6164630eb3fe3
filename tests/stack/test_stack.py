"""The whole stack, with real processes."""

import os
from collections.abc import Iterator
from dataclasses import replace
from urllib.parse import urlsplit

import pytest
import requests

from broker_project.stack import stacks
from broker_project.stack.services import Application, is_listening
from tests.real_broker import TIMEOUT
from tests.stack.test_supervisor import until

pytestmark = pytest.mark.faults


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[stacks.Stack]:
    """A running stack with stores of its own."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("DATABASE_URL", "REDIS_URL"):
            patch.delenv(name, raising=False)
        with stacks.running(tmp_path_factory.mktemp("stack"), durable=False) as running:
            yield running


def status_of(url: str) -> int:
    return requests.get(url, timeout=TIMEOUT).status_code


def test_everything_answers(stack: stacks.Stack) -> None:
    addresses = ("/livez", "/admin/login/", "/api/docs/")
    assert [status_of(stack.web + address) for address in addresses] == [200] * 3
    assert status_of(stack.flower + "/healthcheck") == requests.codes.unauthorized  # nothing of it is open


def test_the_flower_of_another_stack_at_its_port_is_not_taken_for_its_own(stack: stacks.Stack) -> None:
    ours = Application(stack.environment, 0, urlsplit(stack.flower).port or 0, stack.flower_login, "")
    another = replace(ours, flower_login=f"{ours.flower_login}-of-another")
    assert (ours.flower().is_ready(), another.flower().is_ready()) == (True, False)


def test_the_broker_knows_its_own_address(stack: stacks.Stack) -> None:
    assert stack.environment["BROKER_PUBLIC_URL"] == stack.web
    assert status_of(stack.environment["BROKER_PUBLIC_URL"] + "/readyz") == 200


@pytest.mark.behaviour("6.2")
def test_flower_knows_every_queue_by_its_name(stack: stacks.Stack) -> None:
    name, _, password = stack.flower_login.partition(":")
    senders = {f"queue.{sender}" for sender in range(5)}
    queues = {"topic", "retry", *senders, "callbacks", "volatile", "maintenance"}

    def shown(path: str) -> requests.Response:
        return requests.get(stack.flower + path, auth=(name, password), timeout=TIMEOUT)

    def of_workers() -> list[set[str]]:
        workers = shown("/api/workers?refresh=1").json().values()
        return [{queue["name"] for queue in worker.get("active_queues", [])} for worker in workers]

    until(lambda: sorted(of_workers(), key=len) == [{"analytics"}, *[queues] * (os.cpu_count() or 1)])
    page = shown("/broker").text
    assert [queue for queue in (*queues, "analytics") if f">{queue}<" not in page] == []


def test_only_workers_of_lines_drive_lines(stack: stacks.Stack) -> None:
    until(lambda: "worker.started" in stack.supervisor["worker1"].log.read_text())
    assert " ready." in stack.supervisor["analytics"].log.read_text()
    assert "worker.started" not in stack.supervisor["analytics"].log.read_text()


def test_beat_sends_what_the_database_says(stack: stacks.Stack) -> None:
    log = stack.supervisor["beat"].log
    until(lambda: "Sending due task sweep lines (delivery.sweep)" in log.read_text())
    assert "Traceback" not in log.read_text()


def test_a_killed_worker_comes_back_under_its_name(stack: stacks.Stack) -> None:
    worker = stack.supervisor["worker1"]
    name = worker.service.environment["BROKER_WORKER_NAME"]
    killed = worker.pid
    worker.kill()
    until(lambda: worker.pid not in {None, killed})
    until(worker.service.is_ready)
    assert is_listening(stack.environment["REDIS_URL"], f"celery@{name}")


@pytest.mark.parametrize("name", ["postgres", "redis", "web"])
def test_what_is_killed_answers_again(stack: stacks.Stack, name: str) -> None:
    child = stack.supervisor[name]
    killed = child.pid
    child.kill()
    until(lambda: child.pid not in {None, killed})
    until(child.service.is_ready)
