"""What `check --deploy` warns about, and what Celery accepts."""

import pickle
from typing import Any

import pytest
from django.conf import settings
from django.core.checks import run_checks
from kombu.exceptions import ContentDisallowed
from kombu.serialization import loads

from broker_project.celery import app
from broker_project.core.egress import EgressPolicy, networks_in

GOOD: dict[str, Any] = {
    "SECRET_KEY": "k" * 30 + "0123456789abcdefghij",
    "SECRET_KEY_FALLBACKS": [],
    "PUBLIC_URL": "https://broker.example.org",
    "ALLOWED_HOSTS": ["broker.example.org"],
    "DEVELOPMENT": False,
    "PROXIES": networks_in("127.0.0.1,::1,10.1.0.0/16"),
    "REDIS_URL": "redis://:secret@10.0.0.7:6379/0",
    "DATABASES": {"default": {"HOST": "10.0.0.6"}},
    "EGRESS_POLICY": EgressPolicy(networks_in("10.20.0.0/16")),
}
CASES: list[tuple[dict[str, Any], list[str]]] = [
    ({}, []),
    ({"SECRET_KEY": "k" * 49}, ["W001"]),
    ({"SECRET_KEY_FALLBACKS": [GOOD["SECRET_KEY"]]}, ["W002"]),
    ({"PUBLIC_URL": "http://broker.example.org"}, ["W003"]),
    ({"PUBLIC_URL": ""}, []),
    ({"DEVELOPMENT": True}, ["W004"]),
    ({"DEVELOPMENT": True, "ALLOWED_HOSTS": ["127.0.0.1", "localhost", "[::1]"]}, []),
    ({"PROXIES": networks_in("0.0.0.0/0")}, ["W005"]),
    ({"PROXIES": networks_in("2001:db8::/64")}, ["W005"]),
    ({"REDIS_URL": "redis://10.0.0.7:6379/0"}, ["W006"]),
    ({"REDIS_URL": "redis://127.0.0.1:6379/0"}, []),
    ({"REDIS_URL": "unix:///run/redis.sock"}, []),
    ({"EGRESS_POLICY": EgressPolicy(networks_in("127.0.0.0/8"))}, ["W007"]),
    ({"EGRESS_POLICY": EgressPolicy(networks_in("::1"))}, ["W007"]),
    ({"EGRESS_POLICY": EgressPolicy(networks_in("10.0.0.6"))}, ["W007"]),
    ({"EGRESS_POLICY": EgressPolicy(networks_in("10.0.0.0/24")), "DATABASES": {"default": {"HOST": ""}}}, ["W007"]),
    ({"DATABASES": {"default": {"HOST": "nobody-knows.invalid"}}}, []),
    ({"DATABASES": {"default": {"HOST": "/run/postgresql"}}}, []),
]


@pytest.mark.parametrize(("changed", "expected"), CASES)
def test_insecure_setting_is_reported_with_a_hint(
    monkeypatch: pytest.MonkeyPatch, changed: dict[str, Any], expected: list[str]
) -> None:
    for name, value in (GOOD | changed).items():
        monkeypatch.setattr(settings, name, value)
    found = run_checks(tags=["security"], include_deployment_checks=True)
    ours = [warning for warning in found if str(warning.id).startswith("broker_project.")]
    assert [str(warning.id).removeprefix("broker_project.") for warning in ours] == expected
    assert all(warning.hint for warning in ours)


def test_deployment_checks_run_only_with_deploy() -> None:
    assert [one for one in run_checks(tags=["security"]) if str(one.id).startswith("broker_project.")] == []


def test_pickled_tasks_are_refused() -> None:
    with pytest.raises(ContentDisallowed):
        loads(pickle.dumps({}), "application/x-python-serialize", "binary", accept=app.conf.accept_content)
