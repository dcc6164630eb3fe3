"""Flower: everything can be read with its login, and nothing changed."""

import re
from itertools import product

import pytest
import requests
from flower.urls import handlers
from tornado.web import url

from tests.support.real_broker import TIMEOUT_SECONDS, Broker

pytestmark = pytest.mark.faults

METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
READ_BY_POST = "/tasks/datatable"
NO_RESULTS = "/api/task/result/-"
"""Flower answers 503 because tasks have no results."""


FIRST_TASKS = {
    "draw": "1",
    "start": "0",
    "length": "10",
    "search[value]": "",
    "order[0][column]": "0",
    "order[0][dir]": "asc",
    "columns[0][data]": "name",
}


def path_of(route: object) -> str:
    """Return a path that leads to a route."""
    pattern = route.regex.pattern if isinstance(route, url) else route[0]  # type: ignore[index]
    return re.sub(r"\(\.[+*]\)", "-", str(pattern).removesuffix("$").removesuffix("/?")).replace(".*", "/unknown")


PATHS = sorted({path_of(route) for route in handlers})


@pytest.fixture(params=["", "not base64", "Basic", "Basic YWRtaW4=", "Basic w7w6w7w=", "Bearer", "no login"])
def wrong(request: pytest.FixtureRequest) -> dict[str, str]:
    """Return headers with a wrong login, or none."""
    return {} if request.param == "no login" else {"Authorization": request.param}


def login(broker: Broker) -> tuple[str, str]:
    name, _, password = broker.stack.flower_login.partition(":")
    return name, password


def test_without_the_login_every_route_answers_401(broker: Broker, wrong: dict[str, str]) -> None:
    with requests.Session() as session:
        answers = {
            (method, path): session.request(method, broker.stack.flower + path, headers=wrong, timeout=TIMEOUT_SECONDS)
            for method, path in product(METHODS, PATHS)
        }
    assert {answer.status_code for answer in answers.values()} == {401}
    assert {answer.headers["WWW-Authenticate"] for answer in answers.values()} == {'Basic realm="flower"'}


def test_with_the_login_everything_can_be_read(broker: Broker) -> None:
    with requests.Session() as session:
        session.auth = login(broker)
        answers = {
            path: session.get(broker.stack.flower + path, timeout=TIMEOUT_SECONDS, allow_redirects=False).status_code
            for path in PATHS
        }
    commands = {path for path, status in answers.items() if status == 405}
    assert {path.split("/")[1] for path in commands} == {"api"}
    shown = {path for path, status in answers.items() if status == 200}
    assert shown >= {"/", "/workers", "/tasks", "/broker", "/metrics", "/healthcheck", "/api/workers"}
    assert {path for path, status in answers.items() if status >= 500} == {NO_RESULTS}


def test_with_the_login_nothing_can_be_changed(broker: Broker) -> None:
    with requests.Session() as session:
        session.auth = login(broker)
        answers = {
            (method, path): session.request(method, broker.stack.flower + path, timeout=TIMEOUT_SECONDS).status_code
            for method, path in product(METHODS[2:], PATHS)
        }
    assert {status for (_, path), status in answers.items() if path != READ_BY_POST} == {403}


def test_the_list_of_tasks_can_be_read(broker: Broker) -> None:
    answer = requests.post(broker.stack.flower + READ_BY_POST, FIRST_TASKS, auth=login(broker), timeout=TIMEOUT_SECONDS)
    assert answer.json().keys() == {"draw", "data", "recordsTotal", "recordsFiltered"}


def test_a_command_with_a_similar_path_is_refused(broker: Broker) -> None:
    command = f"{broker.stack.flower}/api/task/send-task/delivery.turn.topic{READ_BY_POST}"
    assert requests.post(command, auth=login(broker), timeout=TIMEOUT_SECONDS).status_code == 403
