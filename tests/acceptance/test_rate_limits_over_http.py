"""Rates over real HTTP: what a client is told, and that it is true."""

import time
from collections.abc import Iterator

import pytest
import requests

from tests.brokers import Brokers
from tests.real_broker import TIMEOUT, Broker
from tests.web_processes import Web, another_web

pytestmark = pytest.mark.faults

PROXY = "127.0.0.1"


@pytest.fixture(scope="module")
def web(brokers: Brokers) -> Iterator[Web]:
    """A web process that bears few failures, and believes its proxy."""
    with another_web(brokers.broker(), BROKER_FAILURES_PER_MINUTE="20", BROKER_PROXIES=PROXY) as running:
        yield running


def test_a_key_that_waits_as_long_as_it_is_told_is_served(broker: Broker) -> None:
    key = broker.management.create("api-keys", kind="MANAGEMENT", label="limited", requests_per_minute=30)
    headers = {"Authorization": f"Bearer {key['token']}"}

    def ask() -> requests.Response:
        return requests.get(f"{broker.web}/api/v1/publishers", headers=headers, timeout=TIMEOUT)

    answers = [ask() for _ in range(31)]
    while answers[-1].status_code == 200:
        answers.append(ask())
    refused = answers[-1]
    assert len(answers) >= 31
    assert (refused.status_code, refused.json()["code"]) == (429, "too_many_requests")
    assert refused.headers["RateLimit-Policy"] == '"default";q=30;w=60'
    assert refused.headers["RateLimit"].startswith('"default";r=0;t=')
    wait = int(refused.headers["Retry-After"])
    assert 1 <= wait <= 2
    time.sleep(wait)
    assert ask().status_code == 200


def test_wrong_keys_are_counted_by_the_address_that_the_proxy_names(web: Web) -> None:
    def guess(address: str) -> int:
        headers = {"Authorization": "Bearer brk_wrong", "X-Forwarded-For": f"{address}, 198.51.100.1"}
        return requests.get(f"{web.address}/api/v1/publishers", headers=headers, timeout=TIMEOUT).status_code

    made_up = [guess(f"192.0.2.{n}") for n in range(25)]
    assert made_up[:20] == [401] * 20
    assert made_up[-1] == 429
