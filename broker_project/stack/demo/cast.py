"""Everything around the broker in one run of the demo: publishers, endpoints and mailbox readers."""

import asyncio
import itertools
import json
import random
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import requests

from broker_project.stack.application import python
from broker_project.stack.demo.events import (
    ARCHIVE,
    KINDS,
    PRICE,
    PUBLISHERS,
    READERS,
    RECEIVERS,
    REGIONS,
    REPORT,
    SUBSCRIBERS,
    WORKERS,
    Behaviour,
    Sample,
    event,
    is_sample,
    price_of,
    wants_reply,
)
from broker_project.stack.load.exchanges import Exchange, is_signed, number_in, read_log
from broker_project.stack.load.management_client import Management, session_of
from broker_project.stack.load.publisher import REPEAT_SECONDS, TIMEOUT_SECONDS, Caller, Event, Publisher
from broker_project.stack.load.receiver import Behaviour as Answering
from broker_project.stack.load.receiver import Receiver, answer, hang, running_receiver
from broker_project.stack.supervisor import Service

TOPIC_EVENTS: Final = 3000
REPORTS: Final = 600
QUESTIONS: Final = 120
PLANNED: Final = TOPIC_EVENTS + REPORTS + QUESTIONS
BATCH_SIZE: Final = 20
BURST: Final = TOPIC_EVENTS // 2
"""Events of topics that are published in batches and all at once; the others singly, at a steady pace."""
PRINTERS: Final = "printers"
SECONDS: Final = 30.0
"""How long publishing at a steady pace takes at least, so that receivers go down and come back meanwhile."""
REFUSAL_SECONDS: Final = 4.0
"""How long receivers are down or overloaded."""
REFUSAL_AFTER: Final = 100
"""Events that they take before that."""
ACK_SECONDS: Final = 5
"""Time-out of the archive's mailbox: after it another reader gets what a dead one held."""
SERVER_ERROR: Final = 500


class SampleEndpoint:
    """The application of one sample subscriber: records and answers the requests of each of its subscriptions."""

    def __init__(self, sample: Sample, receiver: Receiver, exchanges: list[Exchange]) -> None:
        self.sample = sample
        self.exchanges = exchanges
        """Of all receivers of its group."""
        self.urls = {each: receiver.url(f"/{sample.name}/{each}") for each in sample.event_types}
        self.secrets: dict[str, str] = {}
        """The signing secret of each subscription, by event type."""
        self._receiver = receiver
        self._attempts = Counter[int]()
        self._refuses_until: float | None = None
        for event_type in sample.event_types:
            receiver.on(f"/{sample.name}/{event_type}", self)

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Answer a request; if it asks for a reply, post one until the broker accepts or refuses it."""
        request = self._receiver.log[-1]  # logged right before this call
        secret = self.secrets[request.path.rpartition("/")[2]]
        is_right = is_sample(request.body) and is_signed(request.headers, request.body, secret)
        exchange = Exchange.of(request, self.sample.name, altered=not is_right)
        self.exchanges.append(exchange)
        exchange.status = self.status_for(exchange.number)
        if exchange.status is None:
            return await hang(reader, writer)
        content = price_of(exchange.number) if self.sample.behaviour is Behaviour.ANSWERING else b""
        has_answered = await answer(exchange.status, content, Retry_After="1")(reader, writer)
        if address := request.headers.get("callbackurl"):
            reply = {"number": exchange.number, "done_by": self.sample.name}
            threading.Thread(target=_post_reply, args=(address, reply), daemon=True).start()
        return has_answered

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

    def _refuses(self) -> bool:
        """Return whether this is the bad time, which begins after some events and ends by the clock."""
        if self._refuses_until is None and len(self._attempts) > REFUSAL_AFTER:
            self._refuses_until = time.monotonic() + REFUSAL_SECONDS
            if self.sample.behaviour is Behaviour.DOWN:  # in a thread, because this one is the receiver's own
                threading.Thread(target=self._receiver.close_port, daemon=True).start()
                threading.Timer(REFUSAL_SECONDS, self._receiver.open_port).start()
        return self._refuses_until is not None and time.monotonic() < self._refuses_until


def _post_reply(address: str, reply: Mapping[str, object]) -> None:
    while requests.post(address, json=reply, timeout=TIMEOUT_SECONDS).status_code >= SERVER_ERROR:
        time.sleep(REPEAT_SECONDS)


def accept_replies(receiver: Receiver, exchanges: list[Exchange]) -> Answering:
    """Return what accepts replies and records them, altered if one is for another report than its address names."""

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        request = receiver.log[-1]
        is_right = request.path == f"/replies/{number_in(request.body)}"
        exchanges.append(replace(Exchange.of(request, "replies", altered=not is_right), status=200))
        return await answer()(reader, writer)

    return accept


@dataclass(frozen=True, slots=True)
class Group:
    """Receivers that share events: one subscriber's endpoint, the workers of a queue, the readers of a mailbox."""

    name: str
    about: str
    events: Sequence[Event]
    """What they are to receive."""
    received: Sequence[Exchange] = ()
    logs: Sequence[Path] = ()
    """Of receivers in processes of their own."""
    is_ordered: bool = False
    shared_by: Sequence[Sample] = ()
    """Subscribers of whose deliveries the broker records one as DELIVERED for each message."""

    def exchanges(self) -> Sequence[Exchange]:
        """Return what has been received so far."""
        return [*self.received, *(Exchange(**fields) for log in self.logs for fields in read_log(log))]


@dataclass(frozen=True, slots=True)
class Cast:
    """Everything that takes part in one run."""

    paced: Sequence[Publisher]
    """They publish at a steady pace, together with `caller`."""
    bursts: Sequence[Publisher]
    """They publish as fast as the broker accepts it, once the others have ended."""
    caller: Caller
    groups: Sequence[Group]

    @property
    def publishers(self) -> Sequence[Publisher]:
        """All that publish events to topics and queues."""
        return [*self.paced, *self.bursts]

    @property
    def published(self) -> int:
        """How much has been published."""
        return sum(len(publisher.published) for publisher in self.publishers) + len(self.caller.calls)


def log_of(folder: Path, name: str) -> Path:
    """Return where a receiver's requests are logged."""
    return folder / f"received-{name}.jsonl"


@contextmanager
def cast_around(api: Management, folder: Path) -> Iterator[Cast]:
    """Run the receivers and configure the broker for the cast; nothing is published yet."""
    with ExitStack() as receivers:
        shared = receivers.enter_context(running_receiver())
        received: dict[str, list[Exchange]] = defaultdict(list)
        endpoints = []
        for sample in RECEIVERS:
            is_alone = sample.behaviour is Behaviour.DOWN  # it closes its port
            receiver = receivers.enter_context(running_receiver()) if is_alone else shared
            group = PRINTERS if sample in WORKERS else sample.name
            endpoints.append(SampleEndpoint(sample, receiver, received[group]))
        sessions = _configure(api, endpoints, folder / "token")
        shares = [*_topic_shares()]
        reports = [event(number, REPORT) for number in range(TOPIC_EVENTS + 1, TOPIC_EVENTS + REPORTS + 1)]
        paced = [_publisher(api, sessions[name], events) for name, size, events in shares if size == 1]
        paced.append(_publisher(api, sessions["office"], [*_with_callbacks(reports, shared, received["replies"])]))
        bursts = [
            Publisher(api.web, sessions[name], iter(events), batch_size=size, interval_seconds=0.0, suffix=api.suffix)
            for name, size, events in shares
            if size > 1
        ]
        caller = Caller(
            f"{api.web}/api/v1/events/{PRICE}{api.suffix}",
            sessions["office"],
            iter(range(TOPIC_EVENTS + REPORTS + 1, PLANNED + 1)),
            lambda number: event(number, PRICE).body,
            interval_seconds=SECONDS / QUESTIONS,
        )
        of_topics = [each for _, _, events in shares for each in events]
        yield Cast(paced, bursts, caller, [*_groups(received, of_topics, reports, folder)])


def _topic_shares() -> Iterator[tuple[str, int, list[Event]]]:
    """Yield for each publisher of topics its name, its batch size and its events."""
    numbers = itertools.count(1)
    for name, size in itertools.product(("tracker", "shop"), (1, BATCH_SIZE)):
        types = random.Random(f"{name} {size}").choices(PUBLISHERS[name], k=TOPIC_EVENTS // 4)  # noqa: S311 - samples
        yield name, size, [event(next(numbers), event_type) for event_type in types]


def _publisher(api: Management, session: requests.Session, events: Sequence[Event]) -> Publisher:
    return Publisher(api.web, session, iter(events), interval_seconds=SECONDS / len(events), suffix=api.suffix)


def _with_callbacks(reports: Sequence[Event], receiver: Receiver, replies: list[Exchange]) -> Iterator[Event]:
    """Yield the reports, some with the address of their own to which a reply is sent."""
    for report in reports:
        path = f"/replies/{report.number}"
        receiver.on(path, accept_replies(receiver, replies))
        yield replace(report, headers={"CallbackURL": receiver.url(path)}) if wants_reply(report.number) else report


def _groups(
    received: Mapping[str, Sequence[Exchange]], events: Sequence[Event], reports: Sequence[Event], folder: Path
) -> Iterator[Group]:
    """Yield everything that receives."""
    for sample in SUBSCRIBERS:
        regions = {sample.region} if sample.region else {*REGIONS}
        wanted = [each for each in events if each.type in sample.event_types and each.region in regions]
        yield Group(sample.name, sample.behaviour, wanted, received[sample.name], is_ordered=True)
    logs = [log_of(folder, name) for name in READERS]
    yield Group(ARCHIVE.name, ARCHIVE.behaviour, events, logs=logs, shared_by=(ARCHIVE,))
    yield Group(PRINTERS, "QUEUE jobs", reports, received[PRINTERS], shared_by=WORKERS)
    replied = [report for report in reports if wants_reply(report.number)]
    yield Group("replies", "callbacks", replied, received["replies"])


def _configure(api: Management, endpoints: Sequence[SampleEndpoint], token: Path) -> dict[str, requests.Session]:
    """Create event types, publishers, subscribers and the mailbox; return the publishers' sessions."""
    for name, kind in KINDS.items():
        sample = json.dumps(json.loads(event(0, name).body), indent=1, ensure_ascii=False)
        api.create("event-types", name=name + api.suffix, kind=kind, sample=sample)
    sessions = {}
    for name, types in PUBLISHERS.items():
        api.create("publishers", name=name + api.suffix, event_types=[each + api.suffix for each in types])
        sessions[name] = session_of(api.key("PUBLISHER", name + api.suffix))
    for endpoint in endpoints:
        _create_subscriber(api, endpoint.sample)
        for event_type, url in endpoint.urls.items():
            terms = {"endpoint": url, "header_filter_string": endpoint.sample.region}
            endpoint.secrets[event_type] = _subscribe(api, endpoint.sample, event_type, **terms)["signing_secret"]
    _create_subscriber(api, ARCHIVE, ack_seconds=ACK_SECONDS)
    for event_type in ARCHIVE.event_types:
        _subscribe(api, ARCHIVE, event_type, delivery_mode="PULL")
    token.touch(mode=0o600)
    token.write_text(api.key("SUBSCRIBER", ARCHIVE.name + api.suffix))
    return sessions


def _create_subscriber(api: Management, sample: Sample, **terms: object) -> None:
    about = f"Sample receiver: {sample.behaviour}."
    api.create("subscribers", name=sample.name + api.suffix, description=about, **terms)


def _subscribe(api: Management, sample: Sample, event_type: str, **terms: object) -> dict[str, Any]:
    names = {"subscriber": sample.name + api.suffix, "event_type": event_type + api.suffix}
    return api.create("subscriptions", **names, position=sample.event_types.index(event_type), **terms)


def reader_services(api: Management, folder: Path) -> list[Service]:
    """Describe the readers of the mailbox to the supervisor."""
    mailbox = (api.web, ARCHIVE.name + api.suffix, str(folder / "token"))
    module = "broker_project.stack.demo.mailbox_reader"
    return [
        Service(f"reader-{name}", python(module, *mailbox, name, str(log_of(folder, name))), stop_seconds=1.0)
        for name in READERS
    ]
