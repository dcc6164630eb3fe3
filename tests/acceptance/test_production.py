"""A web process as others reach it: behind a proxy with TLS, and past it."""

import re
from collections.abc import Iterator

import pytest
import requests

from broker_project.stack.test_command import PRODUCTION_SETTINGS
from tests.real_broker import TIMEOUT, Broker
from tests.web_processes import Web, another_web

pytestmark = pytest.mark.faults

PRODUCTION = {
    "BROKER_DEVELOPMENT": "0",
    "BROKER_PUBLIC_URL": "https://broker.example.org",
    "BROKER_SECRET_KEY": PRODUCTION_SETTINGS["BROKER_SECRET_KEY"],
}
THROUGH_TLS = {"X-Forwarded-Proto": "https"}
LOGIN = "/admin/login/"
TOKEN = re.compile(r'name="csrfmiddlewaretoken" value="(\w+)"')


@pytest.fixture(scope="module")
def web(broker: Broker) -> Iterator[Web]:
    """A process whose proxy is on the same machine."""
    with another_web(broker, BROKER_PROXIES="127.0.0.1", **PRODUCTION) as running:
        yield running


@pytest.fixture(scope="module")
def web_past_its_proxy(broker: Broker) -> Iterator[Web]:
    """A process whose proxy is elsewhere: whoever asks here comes past it."""
    with another_web(broker, BROKER_PROXIES="10.0.0.5", **PRODUCTION) as running:
        yield running


def get(web: Web, path: str = LOGIN, **headers: str) -> requests.Response:
    sent = {"Host": "broker.example.org", **headers}
    return requests.get(web.address + path, headers=sent, timeout=TIMEOUT, allow_redirects=False)


def wrong_login(web: Web, heard_from: str) -> int:
    """Try to log in, through the proxy, from an address that it has heard."""
    headers = {"Host": "broker.example.org", "X-Forwarded-For": heard_from, **THROUGH_TLS}
    page = get(web, **THROUGH_TLS)
    cookies = "; ".join(f"{cookie.name}={cookie.value}" for cookie in page.cookies)
    (token,) = TOKEN.findall(page.text)
    form = {"username": "somebody", "password": "wrong", "csrfmiddlewaretoken": token}
    sent = {**headers, "Cookie": cookies, "Origin": "https://broker.example.org"}
    return requests.post(web.address + LOGIN, form, headers=sent, timeout=TIMEOUT).status_code


def test_without_tls_one_is_led_to_it(web: Web) -> None:
    answer = get(web)
    assert (answer.status_code, answer.headers["Location"]) == (301, "https://broker.example.org/admin/login/")
    assert get(web, "/livez").status_code == 200


def test_through_the_proxy_cookies_are_for_tls_and_this_host_alone(web: Web) -> None:
    answer = get(web, **THROUGH_TLS)
    assert (answer.status_code, answer.headers["Strict-Transport-Security"][:16]) == (200, "max-age=31536000")
    assert re.fullmatch(
        r"__Host-broker_csrf=\w+; HttpOnly; Path=/; SameSite=Strict; Secure", answer.headers["Set-Cookie"]
    )


def test_past_the_proxy_nobody_says_that_there_was_tls(web: Web, web_past_its_proxy: Web) -> None:
    assert get(web_past_its_proxy, **THROUGH_TLS).status_code == 301
    assert get(web, X_Forwarded_Proto="https").status_code == 301


def test_logins_count_for_the_address_that_the_proxy_has_heard(web: Web) -> None:
    assert [wrong_login(web, f"1.2.3.{number}, 203.0.113.7") for number in range(6)] == [200] * 5 + [429]
    assert wrong_login(web, "203.0.113.8") == 200


def test_another_host_is_refused(web: Web) -> None:
    assert get(web, **THROUGH_TLS, Host="elsewhere.example").status_code == 400
