"""One run of the demo: who takes part in it, what they write down where, and the verdict on that."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from broker_project.stack.application import python
from broker_project.stack.demo import publishers, replies, watching
from broker_project.stack.demo.asking import Asking
from broker_project.stack.demo.cast import ARCHIVE, READERS, SUBSCRIBERS, WORKERS, Sample
from broker_project.stack.demo.jobs import Jobs, judge_jobs
from broker_project.stack.demo.judging import Whole, judge_questions
from broker_project.stack.demo.mailboxes import Archived, judge_mailbox
from broker_project.stack.demo.records import Published, Request, answered_in, published_in, requests_in
from broker_project.stack.demo.set_up_demo import Management
from broker_project.stack.demo.sources import Source
from broker_project.stack.demo.verdict import judge
from broker_project.stack.ports import accepts
from broker_project.stack.services import Service


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
        return requests_in(watching.log_of(name, self.folder))

    def receiver(self, sample: Sample, port: int) -> Service:
        """Describe a sample receiver to the supervisor."""
        log = watching.log_of(sample.name, self.folder)
        arguments = (sample.name, str(port), str(log), str(self.secrets))
        return Service(
            name=f"receiver-{sample.name}",
            command=python("broker_project.stack.demo.receiver", *arguments),
            is_ready=lambda: accepts(port),
            stop_seconds=1.0,
        )

    def reader(self, name: str, api: Management) -> Service:
        """Describe a sample reader of the mailbox to the supervisor."""
        log = watching.log_of(name, self.folder)
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
    return judge_jobs(published_in([cast.office.log]), received, run.requests_of(replies.NAME), books)


def _archived(run: Run, to_archive: Sequence[Published], api: Management) -> Archived:
    handed = [request for reader in READERS for request in run.requests_of(reader)]
    return judge_mailbox(to_archive, handed, _books(api, ARCHIVE))


def _books(api: Management, *subscribers: Sample) -> Counter[int]:
    """Return how many deliveries of each message stand in the broker's books as DELIVERED to these."""
    names = [sample.name + api.suffix for sample in subscribers]
    delivered = [one for name in names for one in api.every("deliveries", subscriber=name, status="DELIVERED")]
    return Counter(one["message_id"] for one in delivered)
