"""The verdict on all three kinds together."""

from collections.abc import Sequence
from dataclasses import dataclass

from broker_project.stack.demo.jobs import Jobs
from broker_project.stack.demo.records import Answered
from broker_project.stack.demo.verdict import Verdict, percentiles


@dataclass(frozen=True, slots=True)
class Questions:
    """What became of the SYNC calls."""

    planned: int
    answered: int
    """Calls that got the endpoint's own answer."""

    p50: float
    p95: float
    """Seconds from a call to its answer."""


@dataclass(frozen=True, slots=True)
class Whole:
    """TOPIC, QUEUE and SYNC."""

    planned: int
    """How much was to be published."""

    topics: Verdict
    jobs: Jobs
    questions: Questions

    @property
    def published(self) -> int:
        """How much was published."""
        return self.topics.published + self.jobs.published + self.questions.answered

    @property
    def wrong(self) -> int:
        """How many requests should not have been made like that."""
        return self.topics.wrong + self.jobs.wrong

    @property
    def holds(self) -> bool:
        """Whether the broker has kept its promises."""
        jobs = self.jobs
        kept = self.topics.holds and self.published == self.planned
        return kept and not any((jobs.lost, jobs.duplicated, jobs.wrong, jobs.misrecorded))

    @property
    def counts(self) -> dict[str, int]:
        """The figures of the last line: a job, a reply and a call are a delivery each."""
        once = sum(self.jobs.done_by.values()) + self.jobs.replied + self.questions.answered
        return {
            "published": self.published,
            "deliveries": self.topics.deliveries + self.jobs.published + self.jobs.wanted + self.questions.planned,
            "delivered": self.topics.total("delivered") + once,
            "rejected": self.topics.total("rejected"),
            "lost": self.topics.total("lost") + self.jobs.lost + self.questions.planned - self.questions.answered,
            "duplicated": self.topics.total("duplicated") + self.jobs.duplicated,
            "inverted": self.topics.total("inverted"),
        }

    def __str__(self) -> str:
        """Give the last line of the demo."""
        return "demo: " + ", ".join(f"{name} {count}" for name, count in self.counts.items())


def judge_questions(planned: int, answers: Sequence[Answered]) -> Questions:
    """Judge the calls by what they were answered."""
    right = [answer.seconds for answer in answers if answer.is_right]
    return Questions(planned, len(right), *percentiles(right))
