"""Secrets in bodies, headers, URLs, keys and forms appear in no log, queue, page or error."""

import base64
import binascii
import itertools
import json
import re
import secrets
import threading
import zlib
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote_to_bytes

import psycopg
import pytest
import redis
import requests

from broker_project.stack.folders import StackFolder
from broker_project.stack.load.receiver import Behaviour, Received, Receiver, answer, raw
from broker_project.stack.load.wait import wait_until
from tests.support.faults.edits import AdminSite
from tests.support.html_form import Form
from tests.support.real_broker import TIMEOUT_SECONDS, Broker

pytestmark = pytest.mark.faults

AT_ONCE = 8
MESSAGES = 5
LOCK_SECONDS = 1.3
"""PostgreSQL logs statements that have waited for a lock for a second."""
THROWING = "throw new Error($inmessage.secret + JSON.stringify($inheader))"
OVERFLOWING_FILTER = "$$->'Body'->'large' > '1'"
"""Fails for a message with a number of 140,000 digits."""
BASE64 = re.compile(rb"[A-Za-z0-9+/_-]{24,}={0,2}")
MAX_DEPTH = 4
"""A body in JSON in a Celery message in a Redis command."""
STANDARD = bytes.maketrans(b"-_", b"+/")
TASKS = "/api/tasks?limit=100000"
_numbers = itertools.count(1)


@dataclass(slots=True)
class Story:
    """A broker and all secrets that its users have sent to it."""

    broker: Broker
    receiver: Receiver
    known: dict[str, str] = field(default_factory=dict)
    answers: list[requests.Response] = field(default_factory=list)
    """Answers to requests that failed."""

    def secret(self, what: str) -> str:
        """Return a unique text and record it as a secret."""
        self.known[what] = f"confidential{next(_numbers)}{secrets.token_hex(12)}"
        return self.known[what]

    def publish(self, publisher: requests.Session, event_type: str, **headers: str) -> requests.Response:
        body = {"secret": self.secret(f"body for {event_type} {len(self.known)}"), "large": 1}
        return self.post(publisher, event_type, json.dumps(body), **headers)

    def post(self, publisher: requests.Session, event_type: str, body: str, **headers: str) -> requests.Response:
        path = f"{self.broker.web}/api/v1/events/{event_type}"
        given = {"Content-Type": "application/json", "X-Confidential": self.secret(f"header {len(self.known)}")}
        return publisher.post(path, body, headers=given | headers, timeout=TIMEOUT_SECONDS)

    def requests_of(self, path: str) -> list[Received]:
        """Return the requests to an endpoint, whose query is a secret."""
        return [request for request in self.receiver.log if request.path.startswith(f"{path}?")]

    def be_refused(self, method: str, path: str, **given: Any) -> None:
        """Send a request that is refused."""
        headers = {"Authorization": f"Bearer {self.broker.management.token}"} | given.pop("headers", {})
        answered = requests.request(method, self.broker.web + path, headers=headers, timeout=TIMEOUT_SECONDS, **given)
        assert 400 <= answered.status_code < 500, answered.text
        self.answers.append(answered)


@pytest.fixture
def story(broker: Broker, receiver: Receiver) -> Iterator[Story]:
    story = Story(broker, receiver)
    story.known |= {
        name: str(value)
        for name, value in json.loads(StackFolder(broker.stack.logs.parent).settings.read_text()).items()
        if not str(value).isdigit()
    }
    story.known["management key"] = broker.management.token
    yield story
    broker.inactivate_all()


def publisher_of(story: Story) -> requests.Session:
    publisher = story.broker.publisher()
    story.known[f"publisher key {len(story.known)}"] = str(publisher.headers["Authorization"]).removeprefix("Bearer ")
    return publisher


def subscribe(story: Story, path: str, event_type: str, behaviour: Behaviour | None = None, **fields: Any) -> str:
    """Subscribe with a secret header, query and signing secret; return the subscriber's name."""
    headers = {"X-Api-Key": story.secret(f"header of {path}")}
    endpoint = f"{path}?key={story.secret(f'query of {path}')}"
    if behaviour:
        story.receiver.on(endpoint, behaviour)
    made = story.broker.subscribe(story.receiver.url(endpoint), event_type, headers=headers, **fields)
    story.known |= {f"signing secret of {path} {name}": secret for name, secret in made.secrets.items()}
    return made.name


def deliver_in_every_way(story: Story) -> None:
    """Publish messages that are delivered, rejected, echoed, or fail in a script or filter."""
    topic, queue, sync = (story.broker.event_type(f"Secret.{kind}", kind) for kind in ("TOPIC", "QUEUE", "SYNC"))
    echo = story.secret("what an endpoint answers")
    subscribe(story, "/taking", topic)
    subscribe(story, "/refusing", topic, answer(400, echo.encode(), reason=echo.encode(), X_Echo=echo))
    subscribe(story, "/talking", topic, raw(echo.encode() * 9))
    subscribe(story, "/failing", topic, answer(500, echo.encode(), Set_Cookie=echo))
    subscribe(story, "/throwing", topic, script=THROWING)
    subscribe(story, "/filtering", topic, filter=OVERFLOWING_FILTER)
    subscribe(story, "/work", queue)
    subscribe(story, "/answering", sync)
    with publisher_of(story) as publisher:
        for _ in range(MESSAGES - 2):
            story.publish(publisher, topic).raise_for_status()
        story.post(publisher, topic, f'{{"secret": "{story.secret("too large")}", "large": 1{"0" * 140_000}}}')
        story.publish(publisher, topic, **{"Broker-Durability": "volatile"}).raise_for_status()
        story.publish(publisher, sync)
        story.publish(publisher, queue, CallbackURL=story.receiver.url(f"/done?job={story.secret('callback query')}"))
        wait_until(lambda: story.requests_of("/work") and len(story.requests_of("/taking")) == MESSAGES)
        reply(story, story.requests_of("/work")[0].headers["callbackurl"])
        be_refused(story, publisher, topic)
        wait_for_locks(story, publisher, topic)


def reply(story: Story, address: str) -> None:
    """Reply to a callback and to unknown callbacks."""
    story.known["callback token"] = address.rpartition("/")[2]
    for target in (f"{address}x", f"{address}/x", address, address):
        story.answers.append(requests.post(target, story.secret(f"reply {len(story.known)}"), timeout=TIMEOUT_SECONDS))
    wait_until(lambda: story.requests_of("/done"))


def be_refused(story: Story, publisher: requests.Session, topic: str) -> None:
    """Send invalid requests that contain secrets."""
    story.be_refused(
        "GET", "/api/v1/messages", headers={"Authorization": f"Bearer brk_{story.secret('key of nobody')}"}
    )
    story.be_refused("GET", f"/api/v1/nothing?key={story.secret('unknown query')}")
    story.be_refused("POST", "/api/v1/subscribers", data=f'{{"name": "{story.secret("truncated")}')
    story.be_refused("POST", "/api/v1/subscribers", json={"headers": {"Host": story.secret("refused header")}})
    story.be_refused("POST", "/api/v1/scripts/test", json={"script": 7, "body": story.secret("tried")})
    story.answers += [
        story.post(publisher, topic, f'{{"secret": "{story.secret("broken")}'),
        story.post(publisher, "No.Such.Type", "{}"),
        story.post(publisher, topic, "[" * 5000 + story.secret("deep")),
        story.publish(publisher, topic, **{"Idempotency-Key": "x" * 999}),
    ]


def wait_for_locks(story: Story, publisher: requests.Session, topic: str) -> None:
    """Publish, and create one subscriber concurrently, while both tables are locked."""
    fields = {"name": f"twin-{next(_numbers)}", "headers": {"X-Api-Key": story.secret("header of a twin")}}
    address = f"{story.broker.web}/api/v1/subscribers"
    key = {"Authorization": f"Bearer {story.broker.management.token}"}
    with psycopg.connect(story.broker.stack.environment["DATABASE_URL"]) as connection:
        connection.execute("LOCK TABLE delivery_message, subscriptions_subscriber IN SHARE MODE")
        threading.Timer(LOCK_SECONDS, connection.rollback).start()
        with ThreadPoolExecutor(AT_ONCE + 1) as threads:
            published = threads.submit(story.publish, publisher, topic)
            twins = [
                threads.submit(requests.post, address, json=fields, headers=key, timeout=TIMEOUT_SECONDS)
                for _ in range(AT_ONCE)
            ]
            assert published.result().status_code == 202
            statuses = sorted(twin.result().status_code for twin in twins)
    assert statuses[0] == 201
    assert set(statuses[1:]) <= {400, 409}, statuses
    story.answers += [twin.result() for twin in twins if twin.result().status_code != 201]


def administer(story: Story) -> None:
    """Fail to log in to the admin site, edit a subscriber in it, and rotate secrets."""
    login = f"{story.broker.web}/admin/login/"
    with requests.Session() as session:
        form = Form(session.get(login, timeout=TIMEOUT_SECONDS).text).fields
        wrong = {"username": story.secret("mistyped name"), "password": story.secret("mistyped password")}
        session.post(login, {**form, **wrong}, headers={"Referer": login}, timeout=TIMEOUT_SECONDS)
    rotate(story)
    site = AdminSite(story.broker.stack)
    name = subscribe(story, "/administered", story.broker.event_type("Secret.Admin"))
    header = json.dumps({"X-Api-Key": story.secret("header from the admin")})
    site.save(site.find("subscriber", name), headers=header)


def rotate(story: Story) -> None:
    """Rotate a signing secret and an API key."""
    name = subscribe(story, "/rotated", story.broker.event_type("Secret.Rotated"))
    subscription = story.broker.subscription(name)
    key = story.broker.management.create("api-keys", kind="SUBSCRIBER", subscriber=name, label="old")
    for path, shown in (
        (f"subscriptions/{subscription['id']}/rotate-secret", "signing_secret"),
        (f"api-keys/{key['id']}/rotate", "token"),
    ):
        story.known[f"rotated {shown}"] = story.broker.management.create(path)[shown]
    story.known["former key"] = key["token"]


def found_in(texts: Mapping[str, bytes], known: Mapping[str, str]) -> list[str]:
    """Return which secret stands in which of the texts, through every encoding."""
    return sorted(
        f"{name} in {place}"
        for place, text in texts.items()
        for layer in {*decoded_layers(text)}
        for name, secret in known.items()
        if secret.encode() in layer
    )


def decoded_layers(text: bytes, depth: int = MAX_DEPTH) -> Iterator[bytes]:
    """Yield a text, and what is packed in it: as base64, percent-encoded, compressed."""
    yield text
    if not depth:
        return
    if b"%" in text:
        yield unquote_to_bytes(text)
    for word in {*BASE64.findall(text)}:
        for inner in _unpacked(word):
            yield from decoded_layers(inner, depth - 1)


def _unpacked(word: bytes) -> Iterator[bytes]:
    plain = word.rstrip(b"=").translate(STANDARD)
    try:
        unpacked = base64.b64decode(plain + b"=" * (-len(plain) % 4))
    except binascii.Error:
        return
    yield unpacked
    try:
        yield zlib.decompress(unpacked)
    except zlib.error:
        return


class RedisMonitor:
    """Everything that is said to a Redis from now on."""

    def __init__(self, url: str) -> None:
        self._client = redis.Redis.from_url(url, socket_timeout=None)
        self._monitor = self._client.monitor()  # type: ignore[no-untyped-call]
        self._said: list[str] = []
        self._thread = threading.Thread(target=self._listen, daemon=True)

    def __enter__(self) -> "RedisMonitor":
        self._monitor.__enter__()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    @property
    def said(self) -> bytes:
        return "\n".join(self._said).encode()

    def _listen(self) -> None:
        try:
            for heard in self._monitor.listen():
                self._said.append(str(heard["command"]))
        except (redis.RedisError, OSError, ValueError):
            return  # it is over


def logs_of(broker: Broker) -> Iterator[tuple[str, bytes]]:
    yield from ((path.name, path.read_bytes()) for path in broker.stack.logs.iterdir())


def redis_of(broker: Broker) -> Iterator[tuple[str, bytes]]:
    """Yield every key of Redis with its value."""
    with broker.redis() as client:
        for key in client.scan_iter():
            yield f"Redis key {key!r}", key + client.dump(key)


def flower_of(broker: Broker) -> Iterator[tuple[str, bytes]]:
    """Yield the pages of Flower."""
    name, _, password = broker.stack.flower_login.partition(":")
    for path in (TASKS, "/api/workers?refresh=1", "/broker", "/workers", "/tasks", "/metrics"):
        answer = requests.get(broker.stack.flower + path, auth=(name, password), timeout=TIMEOUT_SECONDS)
        answer.raise_for_status()
        yield f"Flower {path}", answer.content


def records_of(broker: Broker) -> Iterator[tuple[str, bytes]]:
    """Yield what Django writes down of people: the history, and sessions with what they are shown next."""
    yield "history", _rows(broker, "SELECT object_repr, change_message FROM django_admin_log")
    yield "sessions", _rows(broker, "SELECT session_data FROM django_session")


def _rows(broker: Broker, query: str) -> bytes:
    rows: list[tuple[Any, ...]] = broker.ask(query)
    assert rows
    return repr(rows).encode()


def processes_of(broker: Broker) -> Iterator[tuple[str, bytes]]:
    """Yield the command lines of all processes of the stack, and what those know of the settings that need none."""
    groups = {child.pid: child.service for child in broker.stack.supervisor if child.pid}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words, environment = (folder / "cmdline").read_bytes(), (folder / "environ").read_bytes()
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue  # it has ended
        service = groups.get(int(folder.name)) or groups.get(parent)
        if not service:
            continue
        yield f"command line of {service.name}", words
        if service.is_store or b"scripts/child.py" in words:
            yield f"environment of {words!r}", environment


PLACES = (logs_of, redis_of, flower_of, records_of, processes_of)


@pytest.mark.behaviour("1.2", "6.10")
def test_secrets_do_not_leak(story: Story) -> None:
    with RedisMonitor(story.broker.stack.environment["REDIS_URL"]) as overheard:
        deliver_in_every_way(story)
        administer(story)
        texts = {
            "commands to Redis": overheard.said,
            **{f"answer {place}: {one.url}": one.content for place, one in enumerate(story.answers)},
            **{place: text for find in PLACES for place, text in find(story.broker)},
        }
    assert b"delivery.send_volatile" in overheard.said, "the message went through Redis"
    assert found_in(texts, story.known) == []


SECRET = "confidential-0123456789"
BODY = json.dumps({"secret": SECRET}).encode()


def in_base64(text: bytes) -> bytes:
    return b'{"body": "' + base64.b64encode(text) + b'"}'


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (BODY, ["body in log"]),
        (in_base64(b"x" + in_base64(BODY)), ["body in log"]),
        (in_base64(b"xy" + in_base64(in_base64(BODY))), ["body in log"]),
        (base64.urlsafe_b64encode(b"\xff\xfe\xfb" + BODY).rstrip(b"="), ["body in log"]),
        (b"." + base64.urlsafe_b64encode(zlib.compress(BODY * 9)), ["body in log"]),
        (b"/%63onfidential%2D0123456789", ["body in log"]),
        (in_base64(b"confidential-0123456780" * 9), []),
    ],
)
def test_secrets_are_found_in_every_encoding(text: bytes, found: list[str]) -> None:
    assert found_in({"log": b"a line\n" + text + b"\n"}, {"body": SECRET}) == found
