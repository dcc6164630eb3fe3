"""Everything around the broker in one run of the demo: publishers, endpoints and mailbox readers."""

import asyncio
import itertools
import json
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import requests

from broker_project.stack.demo.events import (
    ACK_SECONDS,
    ARCHIVE,
    KINDS,
    PRICE,
    PUBLISHERS,
    READERS,
    RECEIVERS,
    REFUSAL_AFTER,
    REFUSAL_SECONDS,
    REGIONS,
    REPORT,
    SUBSCRIBERS,
    WORKERS,
    Behaviour,
    Sample,
    event,
    price_of,
    wants_reply,
)
from broker_project.stack.load.endpoint import Endpoint, exchange_of, is_signed
from broker_project.stack.load.exchanges import Exchange, number_in, read_log
from broker_project.stack.load.management_client import Management, session_of
from broker_project.stack.load.publisher import REPEAT_SECONDS, TIMEOUT_SECONDS, Caller, Event, Publisher
from broker_project.stack.load.receiver import Received, Receiver, running_receiver
from broker_project.stack.services import Service, python

TOPIC_EVENTS: Final = 3000
REPORTS: Final = 600
QUESTIONS: Final = 120
BATCH_SIZE: Final = 20
SECONDS: Final = 24.0
"""How long publishing takes at least, so that receivers go down and come back meanwhile."""
SERVER_ERROR: Final = 500


class SampleEndpoint(Endpoint):
    """The application of one sample subscriber, with a path for each of its subscriptions."""

    def __init__(self, sample: Sample, receiver: Receiver) -> None:
        super().__init__(sample.name, receiver, *(f"/{sample.name}/{each}" for each in sample.event_types))
        self.sample = sample
        self.answer_seconds = 0.0
        self.secrets: dict[str, str] = {}
        """The signing secret of the subscription with each path."""
        self._attempts = Counter[int]()
        self._refuses_until: float | None = None

    def subscribe(self, api: Management) -> None:
        """Create the subscriber with a subscription to each of its event types."""
        about = f"Sample receiver: {self.sample.behaviour}."
        api.create("subscribers", name=self.name + api.suffix, description=about)
        for event_type in self.sample.event_types:
            path = f"/{self.name}/{event_type}"
            terms = {"endpoint": self._receiver.url(path), "header_filter_string": self.sample.region}
            self.secrets[path] = _subscribe(api, self.sample, event_type, **terms)["signing_secret"]

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Answer a request; if it asks for a reply, post one until the broker accepts or refuses it."""
        request = self._receiver.log[-1]
        has_answered = await super().__call__(reader, writer)
        if has_answered and (address := request.headers.get("callbackurl")):
            content = {"number": number_in(request.body), "done_by": self.name}

            def post_reply() -> None:
                while requests.post(address, json=content, timeout=TIMEOUT_SECONDS).status_code >= SERVER_ERROR:
                    time.sleep(REPEAT_SECONDS)

            threading.Thread(target=post_reply, daemon=True).start()
        return has_answered

    def record(self, request: Received) -> Exchange:
        """Return the record of a request, altered unless it is a sample event signed with the path's secret."""
        exchange = exchange_of(request, self.name)
        is_right = is_sample(request.body) and is_signed(request.headers, request.body, self.secrets[request.path])
        return replace(exchange, altered=not is_right)

    def status_for(self, number: int) -> int | None:
        """Return the status for one more request with this event; None: go down and do not answer."""
        self._attempts[number] += 1
        match self.sample.behaviour:
            case Behaviour.FAILING:
                failures = 0 if number % 20 else 1 if number % 60 else 2
                return 500 if self._attempts[number] <= failures else 200
            case Behaviour.PICKY:
                return 404 if number % 25 == 0 else 422 if number % 40 == 0 else 200
            case Behaviour.OVERLOADED:
                return 503 if self._refuses() else 200
            case Behaviour.DOWN:
                return None if self._refuses() else 200
            case _:
                return 200

    def content_for(self, number: int) -> bytes:
        """Return the price where it was asked for."""
        return price_of(number) if self.sample.behaviour is Behaviour.ANSWERING else b""

    def _refuses(self) -> bool:
        """Return whether this is the bad time, which begins after some events and ends by the clock."""
        if self._refuses_until is None and len(self._attempts) > REFUSAL_AFTER:
            self._refuses_until = time.monotonic() + REFUSAL_SECONDS
            if self.sample.behaviour is Behaviour.DOWN:  # in a thread, because this one is the receiver's own
                threading.Thread(target=self._receiver.close_port, daemon=True).start()
                threading.Timer(REFUSAL_SECONDS, self._receiver.open_port).start()
        return self._refuses_until is not None and time.monotonic() < self._refuses_until


class ReplyEndpoint(Endpoint):
    """Where the office gets replies, with a path for each report that wants one."""

    def __init__(self, receiver: Receiver, numbers: Sequence[int]) -> None:
        super().__init__("replies", receiver, *(f"/replies/{number}" for number in numbers))

    def record(self, request: Received) -> Exchange:
        """Return the record of a reply, altered if it is for another report than its address names."""
        exchange = exchange_of(request, self.name)
        return replace(exchange, altered=request.path != f"/replies/{exchange.number}")


def is_sample(body: bytes) -> bool:
    """Return whether a body is that of a sample event, byte for byte."""
    content = json.loads(body)
    return body == event(content["number"], content["event"]).body


@dataclass(frozen=True, slots=True)
class Group:
    """Receivers that share events: one subscriber's endpoint, the workers of a queue, the readers of a mailbox."""

    name: str
    about: str
    exchanges: Callable[[], Sequence[Exchange]]
    """Returns what they have received so far."""
    events: Sequence[Event]
    """What they are to receive."""


@dataclass(frozen=True, slots=True)
class Cast:
    """Everything that takes part in one run."""

    topics: Sequence[Publisher]
    office: Publisher
    caller: Caller
    endpoints: Mapping[str, SampleEndpoint]
    replies: Endpoint
    folder: Path
    events: Sequence[Event]
    """What is published to topics and the queue."""

    def groups(self) -> list[Group]:
        """Return everything that receives, subscribers of topics first."""

        def wanted(sample: Sample) -> list[Event]:
            regions = {sample.region} if sample.region else {*REGIONS}
            return [each for each in self.events if each.type in sample.event_types and each.region in regions]

        def archived() -> list[Exchange]:
            return [Exchange(**fields) for name in READERS for fields in read_log(log_of(self.folder, name))]

        def together(samples: Sequence[Sample]) -> list[Exchange]:
            return [one for sample in samples for one in self.endpoints[sample.name].exchanges]

        reports = wanted(WORKERS[0])
        replied = [report for report in reports if wants_reply(report.number)]
        lines = [
            Group(sample.name, sample.behaviour, lambda sample=sample: together([sample]), wanted(sample))  # type: ignore[misc]
            for sample in SUBSCRIBERS
        ]
        return [
            *lines,
            Group(ARCHIVE.name, "three readers fetch", archived, wanted(ARCHIVE)),
            Group("printers", "share the jobs", lambda: together(WORKERS), reports),
            Group("replies", "to some of the jobs", lambda: self.replies.exchanges, replied),
        ]

    @property
    def planned(self) -> int:
        """How much is to be published."""
        return len(self.events) + QUESTIONS

    @property
    def published(self) -> int:
        """How much has been published."""
        publishers = (*self.topics, self.office)
        return sum(len(publisher.published) for publisher in publishers) + len(self.caller.calls)

    @property
    def problems(self) -> list[str]:
        """Why publishers stopped before the end."""
        return [publisher.problem for publisher in (*self.topics, self.office) if publisher.problem]


def log_of(folder: Path, name: str) -> Path:
    """Return where a receiver's requests are logged."""
    return folder / f"received-{name}.jsonl"


def token_in(folder: Path) -> Path:
    """Return where the key of the mailbox is stored."""
    return folder / "token"


@contextmanager
def cast_around(api: Management, folder: Path) -> Iterator[Cast]:
    """Run the receivers and configure the broker for the cast; nothing is published yet."""
    with ExitStack() as receivers:
        shared = receivers.enter_context(running_receiver())
        endpoints = {}
        for sample in RECEIVERS:
            is_alone = sample.behaviour is Behaviour.DOWN  # it closes its port
            receiver = receivers.enter_context(running_receiver()) if is_alone else shared
            endpoints[sample.name] = SampleEndpoint(sample, receiver)
        sessions = _configure(api, endpoints, token_in(folder))
        topics = [
            (name, size, [event(number, random.Random(-number).choice(PUBLISHERS[name])) for number in numbers])  # noqa: S311 - samples, no secrets
            for name, size, numbers in _shares()
        ]
        reports = [event(TOPIC_EVENTS + number, REPORT) for number in range(1, REPORTS + 1)]
        replied = [each.number for each in reports if wants_reply(each.number)]
        with_callbacks = [
            replace(
                each, headers={"CallbackURL": shared.url(f"/replies/{each.number}")} if each.number in replied else {}
            )
            for each in reports
        ]
        yield Cast(
            topics=[_publisher(api, sessions[name], events, size) for name, size, events in topics],
            office=_publisher(api, sessions["office"], with_callbacks),
            caller=_caller(api, sessions["office"]),
            endpoints=endpoints,
            replies=ReplyEndpoint(shared, replied),
            folder=folder,
            events=[*itertools.chain.from_iterable(events for _, _, events in topics), *reports],
        )


def _shares() -> Iterator[tuple[str, int, range]]:
    """Yield the numbers of the events of each publisher of topics: its name, its batch size, the numbers."""
    share = TOPIC_EVENTS // 4
    for place, (name, size) in enumerate(itertools.product(("tracker", "shop"), (1, BATCH_SIZE))):
        yield name, size, range(1 + place * share, 1 + (place + 1) * share)


def _publisher(api: Management, session: requests.Session, events: Sequence[Event], size: int = 1) -> Publisher:
    interval = SECONDS * size / len(events)
    return Publisher(api.web, session, iter(events), batch_size=size, interval_seconds=interval, suffix=api.suffix)


def _caller(api: Management, session: requests.Session) -> Caller:
    first = TOPIC_EVENTS + REPORTS + 1
    return Caller(
        f"{api.web}/api/v1/events/{PRICE}{api.suffix}",
        session,
        iter(range(first, first + QUESTIONS)),
        lambda number: event(number, PRICE).body,
        interval_seconds=SECONDS / QUESTIONS,
    )


def _configure(api: Management, endpoints: Mapping[str, SampleEndpoint], token: Path) -> dict[str, requests.Session]:
    """Create event types, publishers, subscribers and the mailbox; return the publishers' sessions."""
    for name, kind in KINDS.items():
        sample = json.dumps(json.loads(event(0, name).body), indent=1, ensure_ascii=False)
        api.create("event-types", name=name + api.suffix, kind=kind, sample=sample)
    sessions = {}
    for name, types in PUBLISHERS.items():
        api.create("publishers", name=name + api.suffix, event_types=[each + api.suffix for each in types])
        sessions[name] = session_of(api.key("PUBLISHER", name + api.suffix))
    for endpoint in endpoints.values():
        endpoint.subscribe(api)
    archive = ARCHIVE.name + api.suffix
    about = f"Sample of a mailbox: {ARCHIVE.behaviour}."
    api.create("subscribers", name=archive, description=about, ack_seconds=ACK_SECONDS)
    for event_type in ARCHIVE.event_types:
        _subscribe(api, ARCHIVE, event_type, delivery_mode="PULL")
    token.touch(mode=0o600)
    token.write_text(api.key("SUBSCRIBER", archive))
    return sessions


def _subscribe(api: Management, sample: Sample, event_type: str, **fields: object) -> dict[str, Any]:
    names = {"subscriber": sample.name + api.suffix, "event_type": event_type + api.suffix}
    return api.create("subscriptions", **names, position=sample.event_types.index(event_type), **fields)


def reader_services(api: Management, folder: Path) -> list[Service]:
    """Describe the readers of the mailbox to the supervisor."""
    where = (api.web, ARCHIVE.name + api.suffix, str(token_in(folder)))
    return [
        Service(
            name=f"reader-{name}",
            command=python("broker_project.stack.demo.mailbox_reader", *where, name, str(log_of(folder, name))),
            stop_seconds=1.0,
        )
        for name in READERS
    ]
