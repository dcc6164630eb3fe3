"""Everything that a broker is told in confidence goes where it is to go, and nowhere else."""

import itertools
import json
import secrets
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import psycopg
import pytest
import requests

from broker_project.stack.folders import StackFolder
from broker_project.stack.load.receiver import Behaviour, Received, Receiver, answer, raw
from broker_project.stack.load.wait import wait_until
from tests.support.faults.edits import AdminSite, Form
from tests.support.real_broker import TIMEOUT_SECONDS, Broker
from tests.support.secret_search import (
    RedisMonitor,
    TextsByPlace,
    flower_of,
    logs_of,
    processes_of,
    records_of,
    redis_of,
)

pytestmark = pytest.mark.faults

AT_ONCE = 8
MESSAGES = 5
LONGER_THAN_A_LOCK_IS_LOOKED_INTO = 1.3
"""PostgreSQL tells of those who have waited for a lock for a second."""
THROWING = "throw new Error($inmessage.secret + JSON.stringify($inheader))"
TOO_LARGE_A_NUMBER = "$$->'Body'->'large' > '1'"
"""It fails for a message that has one of 140,000 digits."""
_numbers = itertools.count(1)


@dataclass(slots=True)
class Story:
    """A broker, those who use it, and what each of them has told it in confidence."""

    broker: Broker
    receiver: Receiver
    known: dict[str, str] = field(default_factory=dict)
    answers: list[requests.Response] = field(default_factory=list)
    """Of what went wrong."""

    def secret(self, what: str) -> str:
        """Return a text that nobody else uses, and remember it."""
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
        """Return what has come to an endpoint, whose query is a secret."""
        return [request for request in self.receiver.log if request.path.startswith(f"{path}?")]

    def ask(self, method: str, path: str, **given: Any) -> None:
        """Ask for something that is refused."""
        headers = {"Authorization": f"Bearer {self.broker.management.token}"} | given.pop("headers", {})
        answered = requests.request(method, self.broker.web + path, headers=headers, timeout=TIMEOUT_SECONDS, **given)
        assert 400 <= answered.status_code < 500, answered.text
        self.answers.append(answered)


@pytest.fixture
def story(broker: Broker, receiver: Receiver) -> Iterator[Story]:
    told = Story(broker, receiver)
    told.known |= {
        name: str(value)
        for name, value in json.loads(StackFolder(broker.stack.logs.parent).settings.read_text()).items()
        if not str(value).isdigit()
    }
    told.known["management key"] = broker.management.token
    yield told
    broker.inactivate_all()


def publisher_of(story: Story) -> requests.Session:
    publisher = story.broker.publisher()
    story.known[f"publisher key {len(story.known)}"] = str(publisher.headers["Authorization"]).removeprefix("Bearer ")
    return publisher


def subscribe(story: Story, path: str, event_type: str, behaviour: Behaviour | None = None, **fields: Any) -> str:
    """Subscribe with secrets of all kinds; return the subscriber's name."""
    headers = {"X-Api-Key": story.secret(f"header of {path}")}
    endpoint = f"{path}?key={story.secret(f'query of {path}')}"
    if behaviour:
        story.receiver.on(endpoint, behaviour)
    made = story.broker.subscribe(story.receiver.url(endpoint), event_type, headers=headers, **fields)
    story.known |= {f"signing secret of {path} {name}": secret for name, secret in made.secrets.items()}
    return made.name


def deliver_in_every_way(story: Story) -> None:
    """Publish what arrives, what is refused, what a script or filter fails on, what is answered with itself."""
    topic, queue, sync = (story.broker.event_type(f"Secret.{kind}", kind) for kind in ("TOPIC", "QUEUE", "SYNC"))
    echo = story.secret("what an endpoint answers")
    subscribe(story, "/taking", topic)
    subscribe(story, "/refusing", topic, answer(400, echo.encode(), reason=echo.encode(), X_Echo=echo))
    subscribe(story, "/talking", topic, raw(echo.encode() * 9))
    subscribe(story, "/failing", topic, answer(500, echo.encode(), Set_Cookie=echo))
    subscribe(story, "/throwing", topic, script=THROWING)
    subscribe(story, "/filtering", topic, filter=TOO_LARGE_A_NUMBER)
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
    """Reply to a callback, also where there is none."""
    story.known["callback token"] = address.rpartition("/")[2]
    for target in (f"{address}x", f"{address}/x", address, address):
        story.answers.append(requests.post(target, story.secret(f"reply {len(story.known)}"), timeout=TIMEOUT_SECONDS))
    wait_until(lambda: story.requests_of("/done"))


def be_refused(story: Story, publisher: requests.Session, topic: str) -> None:
    """Ask wrongly in many ways, with secrets in what is asked."""
    story.ask("GET", "/api/v1/messages", headers={"Authorization": f"Bearer brk_{story.secret('key of nobody')}"})
    story.ask("GET", f"/api/v1/nothing?key={story.secret('unknown query')}")
    story.ask("POST", "/api/v1/subscribers", data=f'{{"name": "{story.secret("truncated")}')
    story.ask("POST", "/api/v1/subscribers", json={"headers": {"Host": story.secret("refused header")}})
    story.ask("POST", "/api/v1/scripts/test", json={"script": 7, "body": story.secret("tried")})
    story.answers += [
        story.post(publisher, topic, f'{{"secret": "{story.secret("broken")}'),
        story.post(publisher, "No.Such.Type", "{}"),
        story.post(publisher, topic, "[" * 5000 + story.secret("deep")),
        story.publish(publisher, topic, **{"Idempotency-Key": "x" * 999}),
    ]


def wait_for_locks(story: Story, publisher: requests.Session, topic: str) -> None:
    """Publish, and create the same thing many times at once, while PostgreSQL has everybody wait for long."""
    fields = {"name": f"twin-{next(_numbers)}", "headers": {"X-Api-Key": story.secret("header of a twin")}}
    address = f"{story.broker.web}/api/v1/subscribers"
    key = {"Authorization": f"Bearer {story.broker.management.token}"}
    with psycopg.connect(story.broker.stack.environment["DATABASE_URL"]) as connection:
        connection.execute("LOCK TABLE delivery_message, subscriptions_subscriber IN SHARE MODE")
        threading.Timer(LONGER_THAN_A_LOCK_IS_LOOKED_INTO, connection.rollback).start()
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
    """Change things in the admin, log in wrongly, rotate."""
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
    """Take another signing secret and another key for the ones there are."""
    name = subscribe(story, "/rotated", story.broker.event_type("Secret.Rotated"))
    (subscription,) = story.broker.get("subscriptions", subscriber=name)["items"]
    key = story.broker.management.create("api-keys", kind="SUBSCRIBER", subscriber=name, label="old")
    headers = {"Authorization": f"Bearer {story.broker.management.token}", "If-Match": "*"}
    for path, shown in (
        (f"subscriptions/{subscription['id']}/rotate-secret", "signing_secret"),
        (f"api-keys/{key['id']}/rotate", "token"),
    ):
        answered = requests.post(f"{story.broker.web}/api/v1/{path}", headers=headers, timeout=TIMEOUT_SECONDS)
        answered.raise_for_status()
        story.known[f"rotated {shown}"] = answered.json()[shown]
    story.known["former key"] = key["token"]


@pytest.mark.behaviour("1.2", "6.10")
def test_what_is_told_in_confidence_stays_where_it_belongs(story: Story) -> None:
    with RedisMonitor(story.broker.stack.environment["REDIS_URL"]) as overheard:
        deliver_in_every_way(story)
        administer(story)
        places = TextsByPlace(
            {
                "what Redis was told": overheard.said,
                **{f"answer {place}: {one.url}": one.content for place, one in enumerate(story.answers)},
                **dict(logs_of(story.broker)),
                **dict(redis_of(story.broker)),
                **dict(flower_of(story.broker)),
                **dict(records_of(story.broker)),
                **dict(processes_of(story.broker)),
            }
        )
    assert b"delivery.send_volatile" in overheard.said, "the message went through Redis"
    assert places.with_any_of(story.known) == []
