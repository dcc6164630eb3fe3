"""One run of the demo: who takes part in it, what they write down where, and the verdict on that."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from broker_project.stack.application import python
from broker_project.stack.demo import publishers, replies, watching
from broker_project.stack.demo.arranging import Management
from broker_project.stack.demo.asking import Asking
from broker_project.stack.demo.cast import SUBSCRIBERS, WORKERS, Sample
from broker_project.stack.demo.jobs import Jobs, judge_jobs
from broker_project.stack.demo.judging import Whole, judge_questions
from broker_project.stack.demo.records import Request, answered_in, published_in, requests_in
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
    topics = judge(published, received, SUBSCRIBERS, planned=publishers.EVENTS)
    questions = judge_questions(len(cast.asking.events), answered_in(cast.asking.log))
    planned = sum(len(source.events) for source in cast.everybody)
    return Whole(planned, topics, _jobs(run, cast, api), questions)


def _jobs(run: Run, cast: Cast, api: Management) -> Jobs:
    received = [request for sample in WORKERS for request in run.requests_of(sample.name)]
    names = [sample.name + api.suffix for sample in WORKERS]
    delivered = [one for name in names for one in api.every("deliveries", subscriber=name, status="DELIVERED")]
    books = Counter(one["message_id"] for one in delivered)
    return judge_jobs(published_in([cast.office.log]), received, run.requests_of(replies.NAME), books)
