"""The verdict on all three kinds, and the mailbox, together."""

from collections.abc import Sequence
from dataclasses import dataclass

from broker_project.stack.demo.jobs import Jobs
from broker_project.stack.demo.mailboxes import Archived
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
    """TOPIC, sent and fetched, QUEUE and SYNC."""

    planned: int
    """How much was to be published."""

    topics: Verdict
    archived: Archived
    jobs: Jobs
    questions: Questions

    @property
    def published(self) -> int:
        """How much was published."""
        return self.topics.published + self.jobs.published + self.questions.answered

    @property
    def wrong(self) -> int:
        """How many requests should not have been made like that."""
        return self.topics.wrong + self.archived.wrong + self.jobs.wrong

    @property
    def holds(self) -> bool:
        """Whether the broker has kept its promises."""
        kept = self.topics.holds and self.published == self.planned
        others = (self.jobs, self.archived)
        return kept and not any(one.lost or one.duplicated or one.wrong or one.misrecorded for one in others)

    @property
    def counts(self) -> dict[str, int]:
        """The figures of the last line: a job, a reply and a call are a delivery each."""
        jobs, archived, questions = self.jobs, self.archived, self.questions
        once = sum(jobs.done_by.values()) + jobs.replied + questions.answered
        return {
            "published": self.published,
            "deliveries": self.topics.deliveries + archived.expected + jobs.published + jobs.wanted + questions.planned,
            "delivered": self.topics.total("delivered") + archived.done + once,
            "rejected": self.topics.total("rejected"),
            "lost": self.topics.total("lost") + archived.lost + jobs.lost + questions.planned - questions.answered,
            "duplicated": self.topics.total("duplicated") + archived.duplicated + jobs.duplicated,
            "inverted": self.topics.total("inverted"),
        }

    def __str__(self) -> str:
        """Give the last line of the demo."""
        return "demo: " + ", ".join(f"{name} {count}" for name, count in self.counts.items())


def judge_questions(planned: int, answers: Sequence[Answered]) -> Questions:
    """Judge the calls by what they were answered."""
    right = [answer.seconds for answer in answers if answer.is_right]
    return Questions(planned, len(right), *percentiles(right))
