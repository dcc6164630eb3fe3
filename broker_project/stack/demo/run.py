"""One run of the demo: who takes part in it, what they write down where, and the verdict on that."""

import json
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from broker_project.stack.demo import publishers
from broker_project.stack.demo.events import ARCHIVE, READERS, REPORT, SUBSCRIBERS, WORKERS, Event, Sample, wants_reply
from broker_project.stack.demo.publishers import NAME as REPLIES
from broker_project.stack.demo.publishers import Asking, Source
from broker_project.stack.demo.records import Published, Request, answered_in, is_final, published_in, requests_in
from broker_project.stack.demo.set_up_demo import Management
from broker_project.stack.demo.verdict import Archived, Jobs, Whole, judge, judge_jobs, judge_mailbox, judge_questions
from broker_project.stack.ports import accepts
from broker_project.stack.services import Service, python

LOOK_EVERY = 0.25
GRACE_SECONDS = 2.0
"""How long to go on looking for duplicates after the last delivery."""

STANDSTILL_SECONDS = 90.0
"""What has not come after so long without any progress counts as lost; no pause of a line is longer."""


@dataclass(slots=True)
class Following:
    """The logs of those who share what they get, read as far as they go: one receiver's, or several workers'."""

    name: str
    about: str
    paths: Sequence[Path]
    expected: int
    ended: set[int] = field(default_factory=set)
    _offsets: Counter[Path] = field(default_factory=Counter)

    def look(self) -> None:
        """Read what is new."""
        for path in filter(Path.exists, self.paths):
            with path.open("rb") as log:
                log.seek(self._offsets[path])
                new = log.read()
            complete = new[: new.rfind(b"\n") + 1]
            self._offsets[path] += len(complete)
            for text in complete.splitlines():
                request = json.loads(text)
                if is_final(request["answer"]):
                    self.ended.add(request["number"])


@dataclass(frozen=True, slots=True)
class Progress:
    """How far the demo is."""

    published: int
    ended: dict[str, int]
    """Deliveries that have their final answer, by who is followed."""


def followings(sources: Sequence[Source], folder: Path) -> list[Following]:
    """Return the logs to be followed, with how much is to come in each."""
    events = [event for source in sources for event in source.events]
    of_topics = [
        Following(
            sample.name,
            sample.behaviour,
            [log_of(sample.name, folder)],
            _wanted(sample, events),
        )
        for sample in SUBSCRIBERS
    ]
    readers = [log_of(name, folder) for name in READERS]
    reports = [event for event in events if event.type == REPORT]
    workers = [log_of(sample.name, folder) for sample in WORKERS]
    wanted = sum(wants_reply(report.number) for report in reports)
    return [
        *of_topics,
        Following(ARCHIVE.name, "three readers fetch", readers, _wanted(ARCHIVE, events)),
        Following("printers", "share the jobs", workers, len(reports)),
        Following("replies", "to some of the jobs", [log_of(REPLIES, folder)], wanted),
    ]


def _wanted(sample: Sample, events: Iterable[Event]) -> int:
    return sum(sample.wants(event.type, event.region) for event in events)


def log_of(name: str, folder: Path) -> Path:
    """Return where a receiver writes down its requests."""
    return folder / f"received-{name}.jsonl"


def watch(sources: Sequence[Source], logs: Sequence[Following]) -> Iterator[Progress]:
    """Give the progress now and then, until everything is through or nothing goes on."""
    last, moved_at = None, time.monotonic()
    while time.monotonic() - moved_at < (GRACE_SECONDS if _is_through(sources, logs) else STANDSTILL_SECONDS):
        time.sleep(LOOK_EVERY)
        for log in logs:
            log.look()
        now = Progress(sum(source.done for source in sources), {log.name: len(log.ended) for log in logs})
        if now != last:
            last, moved_at = now, time.monotonic()
        yield now
        if any(source.problem for source in sources):
            return


def _is_through(sources: Sequence[Source], logs: Sequence[Following]) -> bool:
    everything_published = all(source.done == len(source.events) for source in sources)
    return everything_published and all(len(log.ended) >= log.expected for log in logs)


@dataclass(frozen=True, slots=True)
class Run:
    """One run's folder: the logs of publishers and receivers."""

    folder: Path

    @property
    def secrets(self) -> Path:
        """The receivers' signing secrets."""
        return self.folder / "secrets.json"

    @property
    def token(self) -> Path:
        """The key of the mailbox."""
        return self.folder / "token.json"

    def requests_of(self, name: str) -> list[Request]:
        """Return what a receiver wrote down."""
        return requests_in(log_of(name, self.folder))

    def receiver(self, sample: Sample, port: int) -> Service:
        """Describe a sample receiver to the supervisor."""
        log = log_of(sample.name, self.folder)
        arguments = (sample.name, str(port), str(log), str(self.secrets))
        return Service(
            name=f"receiver-{sample.name}",
            command=python("broker_project.stack.demo.receiver", *arguments),
            is_ready=lambda: accepts(port),
            stop_seconds=1.0,
        )

    def reader(self, name: str, api: Management) -> Service:
        """Describe a sample reader of the mailbox to the supervisor."""
        log = log_of(name, self.folder)
        arguments = (api.web, ARCHIVE.name + api.suffix, name, str(log), str(self.token))
        return Service(
            name=f"reader-{name}",
            command=python("broker_project.stack.demo.mailbox_reader", *arguments),
            stop_seconds=1.0,
        )


@dataclass(frozen=True, slots=True)
class Cast:
    """Everybody who publishes."""

    topics: Sequence[publishers.Publisher]
    office: publishers.Publisher
    asking: Asking

    @property
    def everybody(self) -> Sequence[Source]:
        """All of them."""
        return [*self.topics, self.office, self.asking]


def judged(run: Run, cast: Cast, api: Management) -> Whole:
    """Judge by the logs; what the books say is asked of the broker."""
    published = published_in(publisher.log for publisher in cast.topics)
    received = [request for sample in SUBSCRIBERS for request in run.requests_of(sample.name)]
    to_archive = [event for event in published if ARCHIVE.wants(event.type, event.region)]
    topics = judge(published, received, SUBSCRIBERS, planned=publishers.EVENTS, fetched=len(to_archive))
    questions = judge_questions(len(cast.asking.events), answered_in(cast.asking.log))
    planned = sum(len(source.events) for source in cast.everybody)
    return Whole(planned, topics, _archived(run, to_archive, api), _jobs(run, cast, api), questions)


def _jobs(run: Run, cast: Cast, api: Management) -> Jobs:
    received = [request for sample in WORKERS for request in run.requests_of(sample.name)]
    books = _books(api, *WORKERS)
    return judge_jobs(published_in([cast.office.log]), received, run.requests_of(publishers.NAME), books)


def _archived(run: Run, to_archive: Sequence[Published], api: Management) -> Archived:
    handed = [request for reader in READERS for request in run.requests_of(reader)]
    return judge_mailbox(to_archive, handed, _books(api, ARCHIVE))


def _books(api: Management, *subscribers: Sample) -> Counter[int]:
    """Return how many deliveries of each message stand in the broker's books as DELIVERED to these."""
    names = [sample.name + api.suffix for sample in subscribers]
    delivered = [one for name in names for one in api.every("deliveries", subscriber=name, status="DELIVERED")]
    return Counter(one["message_id"] for one in delivered)
