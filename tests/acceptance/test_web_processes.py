"""Web processes behind proxies, several at a time, and with rate limits."""

import http.client
import os
import re
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import cycle
from pathlib import Path

import psycopg
import pytest
import requests

from broker_project.stack.application import answers
from broker_project.stack.load.wait import wait_until
from broker_project.stack.test_command import PRODUCTION_SETTINGS
from tests.support.brokers import Brokers
from tests.support.real_broker import TIMEOUT_SECONDS, Broker, WebProcess, another_web_process

pytestmark = pytest.mark.faults

PRODUCTION = {
    "BROKER_DEVELOPMENT": "0",
    "BROKER_PUBLIC_URL": "https://broker.example.org",
    "BROKER_SECRET_KEY": PRODUCTION_SETTINGS["BROKER_SECRET_KEY"],
}
THROUGH_TLS = {"X-Forwarded-Proto": "https"}
LOGIN = "/admin/login/"
TOKEN = re.compile(r'name="csrfmiddlewaretoken" value="(\w+)"')

OPEN = b'{"state": "open", "team": {"name": "blue"}}'
ENDPOINT = "http://127.0.0.1:9/nobody-listens"

PROXY = "127.0.0.1"


@pytest.fixture(scope="module")
def web(broker: Broker) -> Iterator[WebProcess]:
    """A process whose proxy is on the same machine."""
    with another_web_process(broker, BROKER_PROXIES="127.0.0.1", **PRODUCTION) as running:
        yield running


@pytest.fixture(scope="module")
def web_past_its_proxy(broker: Broker) -> Iterator[WebProcess]:
    """A process whose proxy is on another machine: requests from here bypass it."""
    with another_web_process(broker, BROKER_PROXIES="10.0.0.5", **PRODUCTION) as running:
        yield running


def get(web: WebProcess, path: str = LOGIN, **headers: str) -> requests.Response:
    sent = {"Host": "broker.example.org", **headers}
    return requests.get(web.address + path, headers=sent, timeout=TIMEOUT_SECONDS, allow_redirects=False)


def wrong_login(web: WebProcess, heard_from: str) -> int:
    """Try to log in through the proxy, which reports this address; return the status."""
    headers = {"Host": "broker.example.org", "X-Forwarded-For": heard_from, **THROUGH_TLS}
    page = get(web, **THROUGH_TLS)
    cookies = "; ".join(f"{cookie.name}={cookie.value}" for cookie in page.cookies)
    (token,) = TOKEN.findall(page.text)
    form = {"username": "somebody", "password": "wrong", "csrfmiddlewaretoken": token}
    sent = {**headers, "Cookie": cookies, "Origin": "https://broker.example.org"}
    return requests.post(web.address + LOGIN, form, headers=sent, timeout=TIMEOUT_SECONDS).status_code


def test_requests_without_tls_are_redirected(web: WebProcess) -> None:
    answer = get(web)
    assert (answer.status_code, answer.headers["Location"]) == (301, "https://broker.example.org/admin/login/")
    assert get(web, "/livez").status_code == 200


def test_cookies_through_the_proxy_are_for_tls_and_this_host_only(web: WebProcess) -> None:
    answer = get(web, **THROUGH_TLS)
    assert (answer.status_code, answer.headers["Strict-Transport-Security"][:16]) == (200, "max-age=31536000")
    assert re.fullmatch(
        r"__Host-broker_csrf=\w+; HttpOnly; Path=/; SameSite=Strict; Secure", answer.headers["Set-Cookie"]
    )


def test_only_the_proxy_may_report_tls(web: WebProcess, web_past_its_proxy: WebProcess) -> None:
    assert get(web_past_its_proxy, **THROUGH_TLS).status_code == 301
    assert get(web, X_Forwarded_Proto="https").status_code == 301


def test_logins_are_counted_by_the_address_that_the_proxy_reports(web: WebProcess) -> None:
    assert [wrong_login(web, f"1.2.3.{number}, 203.0.113.7") for number in range(6)] == [200] * 5 + [429]
    assert wrong_login(web, "203.0.113.8") == 200


@dataclass(frozen=True, slots=True)
class Webs:
    """Both web processes and an event type."""

    broker: Broker
    addresses: tuple[str, str]
    event_type: str

    def deliveries(self, web: str) -> int:
        """Publish through one of the processes; return how many subscriptions got the message."""
        answer = self.broker.publish(self.event_type, OPEN, web=web)
        answer.raise_for_status()
        return int(answer.json()["deliveries"])


@pytest.fixture
def webs(broker: Broker) -> Iterator[Webs]:
    event_type = broker.event_type("Two.Webs.Event")
    with another_web_process(broker) as other:
        yield Webs(broker, (broker.web, other.address), event_type)
    broker.inactivate_all()


@pytest.mark.behaviour("3.7")
def test_a_change_through_one_process_applies_to_the_next_publish_through_another(webs: Webs) -> None:
    subscribed = webs.broker.subscribe(ENDPOINT, webs.event_type).name
    one = webs.broker.subscription(subscribed)
    subscription, subscriber = f"subscriptions/{one['id']}", f"subscribers/{subscribed}"
    new = {"subscriber": subscribed, "endpoint": ENDPOINT}
    state, team = "$$->'Body'->>'state'", "$$->'Body'->'team'->>'name'"
    steps: list[tuple[str, str, dict[str, object], int]] = [
        ("PATCH", subscription, {"filter": f"{state} = 'shut'"}, 0),
        ("PATCH", subscription, {"filter": f"{state} = 'open'"}, 1),
        ("PATCH", subscription, {"header_filter_string": "eu"}, 0),
        ("PATCH", subscription, {"header_filter_string": ""}, 1),
        ("POST", f"{subscription}/inactivate", {}, 0),
        ("POST", f"{subscription}/activate", {}, 1),
        ("POST", "subscriptions", {**new, "event_type": webs.event_type, "filter": f"{team} = 'blue'"}, 2),
        ("POST", "subscriptions", {**new, "event_type": webs.event_type, "filter": f"{team} = 'red'"}, 2),
        ("POST", "subscriptions", {**new, "event_pattern": "Two.Webs.*", "filter": f"{state} != 'shut'"}, 3),
        ("POST", "subscriptions", {**new, "event_pattern": "Two.*", "filter": f"{state} in ('open')"}, 4),
        ("POST", f"{subscriber}/inactivate", {}, 0),
        ("POST", f"{subscriber}/activate", {}, 4),
    ]
    assert [webs.deliveries(web) for web in webs.addresses] == [1, 1]
    for through, (method, path, fields, expected) in zip(cycle((0, 1)), steps, strict=False):
        replace(webs.broker.management, web=webs.addresses[through]).send(method, path, fields)
        assert webs.deliveries(webs.addresses[1 - through]) == expected, (method, path, fields)
        assert webs.deliveries(webs.addresses[through]) == expected


@pytest.fixture(scope="module")
def limited_web(brokers: Brokers) -> Iterator[WebProcess]:
    """A web process that allows few failures a minute and trusts its proxy."""
    with another_web_process(brokers.broker(), BROKER_FAILURES_PER_MINUTE="20", BROKER_PROXIES=PROXY) as running:
        yield running


def test_a_limited_key_is_served_after_its_retry_after(broker: Broker) -> None:
    key = broker.management.create("api-keys", kind="MANAGEMENT", label="limited", requests_per_minute=30)
    headers = {"Authorization": f"Bearer {key['token']}"}

    def ask() -> requests.Response:
        return requests.get(f"{broker.web}/api/v1/publishers", headers=headers, timeout=TIMEOUT_SECONDS)

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


def test_wrong_keys_are_counted_by_the_address_that_the_proxy_reports(limited_web: WebProcess) -> None:
    def guess(address: str) -> int:
        headers = {"Authorization": "Bearer brk_wrong", "X-Forwarded-For": f"{address}, 198.51.100.1"}
        return requests.get(
            f"{limited_web.address}/api/v1/publishers", headers=headers, timeout=TIMEOUT_SECONDS
        ).status_code

    made_up = [guess(f"192.0.2.{n}") for n in range(25)]
    assert made_up[:20] == [401] * 20
    assert made_up[-1] == 429


PROCESSES = 2
CONNECTIONS = 50
PUBLISHERS = 4
EVENTS = 100
"""Of each publisher."""


@pytest.fixture
def pair(broker: Broker) -> Iterator[WebProcess]:
    """A web server with two processes, both of which answer."""
    with another_web_process(broker, BROKER_WEB_PROCESSES=str(PROCESSES)) as running:
        wait_until(lambda: len(running.children()) == len(answering(running)) == PROCESSES)
        yield running


def sockets(pid: int) -> set[str]:
    """Return the names of the sockets that a process has open. It may close files while they are listed."""
    names = set()
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):
            names.add(str(link.readlink()))
    return {name for name in names if name.startswith("socket:")}


def answering(server: WebProcess) -> set[int]:
    """Return the ids of the processes that answer on new connections: the kernel chooses one for each."""
    before = {pid: sockets(pid) for pid in server.children()}
    with ExitStack() as until_the_end:
        for _ in range(CONNECTIONS):
            connection = http.client.HTTPConnection(server.address.removeprefix("http://"), timeout=TIMEOUT_SECONDS)
            until_the_end.enter_context(closing(connection)).request("GET", "/livez")
            assert connection.getresponse().status == 200
        return {pid for pid in before if len(sockets(pid) - before[pid]) > CONNECTIONS / 5}  # it may close older ones


@pytest.mark.behaviour("11.3")
def test_a_killed_process_of_a_server_loses_nothing_acknowledged_and_is_replaced(
    broker: Broker, pair: WebProcess
) -> None:
    event_type = broker.event_type("Killed.Process")
    acknowledged: list[int] = []

    def publish() -> None:
        for _ in range(EVENTS):
            with suppress(requests.ConnectionError):
                answer = broker.publish(event_type, web=pair.address)
                answer.raise_for_status()
                acknowledged.append(answer.json()["id"])

    killed, kept = pair.children()
    with ThreadPoolExecutor(PUBLISHERS) as publishers:
        publishing = [publishers.submit(publish) for _ in range(PUBLISHERS)]
        wait_until(lambda: len(acknowledged) >= EVENTS)
        os.kill(killed, signal.SIGKILL)
    for one in publishing:
        one.result()
    assert len(acknowledged) > EVENTS, "the other process went on"
    stored = broker.ask("SELECT count(*) FROM delivery_message WHERE id = ANY(%(ids)s)", ids=acknowledged)
    assert stored == [(len(acknowledged),)]
    wait_until(lambda: len(pair.children()) == PROCESSES and killed not in pair.children())
    wait_until(lambda: len(answering(pair)) == PROCESSES)
    assert kept in pair.children()


@pytest.mark.behaviour("11.3")
def test_a_stopping_server_of_two_processes_finishes_its_requests(broker: Broker, pair: WebProcess) -> None:
    event_type = broker.event_type("Stopped.Pair")

    def slow_body() -> Iterator[bytes]:
        yield b"{"
        pair.process.terminate()
        wait_until(lambda: not answers(f"{pair.address}/livez"))  # while the request is still on its way in
        yield b"}"

    with ThreadPoolExecutor(1) as publisher:
        waiting = publisher.submit(broker.publish, event_type, slow_body(), web=pair.address)
        assert waiting.result(TIMEOUT_SECONDS).status_code == 202
    assert pair.process.wait(TIMEOUT_SECONDS) == 0


UNANSWERED = 8
COMMITS_WAIT = """
CREATE SEQUENCE messages_stored;
CREATE FUNCTION count_message() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  PERFORM nextval('messages_stored');
  RETURN NULL;
END $$;
CREATE TRIGGER count_message AFTER INSERT ON delivery_message FOR EACH ROW EXECUTE FUNCTION count_message();
CREATE FUNCTION wait_for_the_test() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  PERFORM pg_advisory_xact_lock_shared(11);
  RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER wait_for_the_test AFTER INSERT ON delivery_message DEFERRABLE INITIALLY DEFERRED
  FOR EACH ROW EXECUTE FUNCTION wait_for_the_test();
"""
STORED_AND_COMMITTING = """
SELECT (SELECT last_value FROM messages_stored),
       count(*) FILTER (WHERE state = 'active' AND wait_event = 'advisory') = count(*)
  FROM pg_stat_activity
 WHERE pid IN (SELECT pid FROM pg_locks
                WHERE relation = 'delivery_message'::regclass AND mode = 'RowExclusiveLock')
"""
"""How many messages waiting transactions have stored, and whether each waits in its commit, for the trigger's lock."""
STORED = """
SELECT m.id FROM delivery_message m JOIN subscriptions_eventtype e ON e.id = m.event_type_id
 WHERE e.name = %(event_type)s AND deliveries_count = 1 ORDER BY m.id
"""


@contextmanager
def commits_wait(broker: Broker) -> Iterator[None]:
    """Let publishes wait in their commits."""
    with psycopg.connect(broker.stack.environment["DATABASE_URL"], autocommit=True) as elsewhere:
        elsewhere.execute(COMMITS_WAIT.encode())
        elsewhere.execute("SELECT pg_advisory_lock(11)")
        try:
            yield
        finally:
            elsewhere.execute("SELECT pg_advisory_unlock(11)")
            elsewhere.execute("DROP FUNCTION wait_for_the_test, count_message CASCADE")
            elsewhere.execute("DROP SEQUENCE messages_stored")


@pytest.mark.behaviour("2.6", "11.3")
def test_groups_that_were_stored_and_not_answered_are_answered_when_they_are_repeated(broker: Broker) -> None:
    event_type = broker.event_type("Killed.Unanswered")
    broker.subscribe(ENDPOINT, event_type)

    def publish(number: int, web: str = "") -> requests.Response:
        return broker.publish(event_type, headers={"Idempotency-Key": f"{event_type}-{number}"}, web=web)

    with another_web_process(broker) as server, ThreadPoolExecutor(UNANSWERED) as publishers:
        publish(0, server.address).raise_for_status()  # with a key that was used recently, requests are grouped
        with commits_wait(broker):
            waiting = [publishers.submit(publish, number, server.address) for number in range(1, UNANSWERED)]
            wait_until(lambda: broker.ask(STORED_AND_COMMITTING) == [(UNANSWERED - 1, True)])
            os.killpg(server.process.pid, signal.SIGKILL)
        assert {type(one.exception(TIMEOUT_SECONDS)) for one in waiting} == {requests.ConnectionError}
    wait_until(lambda: len(broker.ask(STORED, event_type=event_type)) == UNANSWERED)
    repeated = [publish(number) for number in range(UNANSWERED)]
    assert [one.headers.get("Idempotency-Replayed") for one in repeated] == ["true"] * UNANSWERED
    assert sorted((one.json()["id"],) for one in repeated) == broker.ask(STORED, event_type=event_type)


def test_a_server_ends_whose_processes_die_again_and_again(pair: WebProcess) -> None:
    first = pair.children()
    os.kill(first[0], signal.SIGKILL)
    wait_until(lambda: len(pair.children()) == PROCESSES and first[0] not in pair.children())
    (replacement,) = {*pair.children()} - {*first}
    os.kill(replacement, signal.SIGKILL)
    assert pair.process.wait(TIMEOUT_SECONDS) == 1
