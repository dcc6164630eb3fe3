"""Whether everything arrived, once and in order: computed from the logs of publishers and receivers only."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import quantiles

from broker_project.stack.demo.events import Sample, wants_reply
from broker_project.stack.demo.records import (
    Answered,
    Published,
    Request,
    inverted,
    is_accepted,
    is_final,
    repeated,
    sets_aside,
    unflagged,
)


@dataclass(frozen=True, slots=True)
class Account:
    """What became of one subscriber's deliveries."""

    expected: int
    delivered: int
    rejected: int
    set_aside: int
    """Delivered or rejected after an answer of 5xx that let others go first."""

    requests: int
    lost: int
    duplicated: int
    """Requests for an event that had been answered for good before."""

    inverted: int
    """Events that came after one whose publish call began only when theirs had ended, those set aside left out."""

    wrong: int
    """Requests for an event that was not for this subscriber, was altered, or was not signed with its secret."""

    p50: float
    p95: float
    """Seconds from the beginning of the publish call to the arrival of the request that was accepted."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The accounts of all subscribers of topics together."""

    planned: int
    """How many events were to be published."""

    published: int
    announced: int
    """How many deliveries to them the broker spoke of when it took the events."""

    accounts: dict[str, Account]

    @property
    def holds(self) -> bool:
        """Whether the broker has kept its promises."""
        kept = self.published == self.planned and self.deliveries == self.announced == self.total(
            "delivered"
        ) + self.total("rejected")
        return kept and not any(map(self.total, ("lost", "duplicated", "inverted", "wrong")))

    @property
    def deliveries(self) -> int:
        """How many there had to be."""
        return self.total("expected")

    @property
    def wrong(self) -> int:
        """How many requests should not have been made like that."""
        return self.total("wrong")

    def total(self, name: str) -> int:
        """Return a figure over all subscribers."""
        return sum(getattr(account, name) for account in self.accounts.values())


def judge(
    published: Sequence[Published],
    received: Sequence[Request],
    subscribers: Iterable[Sample],
    *,
    planned: int,
    fetched: int = 0,
) -> Verdict:
    """Return the verdict on a whole run, in which so many of the deliveries were for a mailbox."""
    accounts = {
        sample.name: account(
            {event.number: event for event in published if sample.wants(event.type, event.region)},
            sorted((request for request in received if request.subscriber == sample.name), key=lambda each: each.at),
        )
        for sample in subscribers
    }
    return Verdict(planned, len(published), sum(event.deliveries for event in published) - fetched, accounts)


def account(expected: dict[int, Published], requests: Sequence[Request]) -> Account:
    """Return what became of one subscriber's events, given its requests in the order of their arrival."""
    known = [request for request in requests if request.number in expected]
    finals = [request for request in known if is_final(request.answer)]
    ended = {request.number: request for request in reversed(finals)}
    aside = {request.number for request in known if sets_aside(request.answer)}
    accepted = [request for request in ended.values() if is_accepted(request.answer)]
    p50, p95 = percentiles([request.at - expected[request.number].started for request in accepted])
    return Account(
        expected=len(expected),
        delivered=len(accepted),
        rejected=len(ended) - len(accepted),
        set_aside=len(aside & ended.keys()),
        requests=len(requests),
        lost=len(expected.keys() - ended.keys()),
        duplicated=repeated(known),
        inverted=inverted([expected[request.number] for request in known if request.number not in aside]),
        wrong=sum(not is_right(request, expected.get(request.number)) for request in requests),
        p50=p50,
        p95=p95,
    )


def is_right(request: Request, event: Published | None) -> bool:
    """Say whether a request carries the event as it was published, signed."""
    return event is not None and request.fingerprint == event.fingerprint and request.signed


def percentiles(seconds: Sequence[float]) -> tuple[float, float]:
    """Return the 50th and the 95th; 0 of nothing."""
    if len(seconds) < 2:  # noqa: PLR2004 - quantiles need two
        return (seconds[0], seconds[0]) if seconds else (0.0, 0.0)
    cuts = quantiles(seconds, n=20)
    return cuts[9], cuts[18]


@dataclass(frozen=True, slots=True)
class Jobs:
    """What became of the jobs of a QUEUE and of the replies to them."""

    published: int
    done_by: Mapping[str, int]
    """How many each worker has taken."""

    requests: Mapping[str, int]
    """How many each worker got."""

    lost: int
    """Jobs that no worker has taken, and replies that did not arrive."""

    duplicated: int
    """Requests for a job that a worker had taken, without saying that they may be; replies that came again."""

    wrong: int
    """Requests and replies that were altered, unsigned or for somebody else."""

    misrecorded: int
    """Jobs that do not stand in the broker's books as DELIVERED, once."""

    wanted: int
    """How many replies there had to be."""

    replied: int


def judge_jobs(
    published: Sequence[Published],
    received: Iterable[Request],
    replies: Sequence[Request],
    books: Mapping[int, int],
) -> Jobs:
    """Judge jobs; the requests of each worker are in the order of their arrival.

    `books` says of each message how many of its deliveries are DELIVERED.
    """
    jobs = {job.number: job for job in published}
    requests = sorted(received, key=lambda each: each.at)
    accepted = {each.number: each for each in reversed(requests) if is_accepted(each.answer)}
    wanted = {number for number in jobs if wants_reply(number)}
    replied = {each.number for each in replies}
    return Jobs(
        published=len(jobs),
        done_by=Counter(each.subscriber for each in accepted.values()),
        requests=Counter(each.subscriber for each in requests),
        lost=len(jobs.keys() - accepted.keys()) + len(wanted - replied),
        duplicated=unflagged(requests) + len(replies) - len(replied),
        wrong=sum(not is_right(each, jobs.get(each.number)) for each in requests) + _misdirected(replies, wanted),
        misrecorded=sum(books.get(job.message, 0) != 1 for job in jobs.values()),
        wanted=len(wanted),
        replied=len(replied),
    )


def _misdirected(replies: Iterable[Request], wanted: Collection[int]) -> int:
    return sum(each.number not in wanted or not each.signed for each in replies)


@dataclass(frozen=True, slots=True)
class Archived:
    """What became of the events in a mailbox."""

    expected: int
    done_by: Mapping[str, int]
    """How many each reader has archived."""

    handed_to: Mapping[str, int]
    """How many each reader was handed."""

    returned: int
    """Handed out, and not archived that time."""

    lost: int
    duplicated: int
    """Handed out after they had been archived, without saying that they may have been."""

    wrong: int
    """Altered, or not for the archive."""

    misrecorded: int
    """Events that do not stand in the broker's books as DELIVERED, once."""

    p50: float
    p95: float
    """Seconds from the beginning of the publish call to the hand-out after which it was archived."""

    @property
    def done(self) -> int:
        """How many are archived."""
        return sum(self.done_by.values())


def judge_mailbox(expected: Sequence[Published], handed: Iterable[Request], books: Mapping[int, int]) -> Archived:
    """Judge what a mailbox has handed out; `books` says of each message how many of its deliveries are DELIVERED."""
    events = {event.number: event for event in expected}
    hand_outs = sorted(handed, key=lambda each: each.at)
    done = {each.number: each for each in reversed(hand_outs) if is_accepted(each.answer) and each.number in events}
    p50, p95 = percentiles([each.at - events[each.number].started for each in done.values()])
    return Archived(
        expected=len(events),
        done_by=Counter(each.subscriber for each in done.values()),
        handed_to=Counter(each.subscriber for each in hand_outs),
        returned=sum(not is_accepted(each.answer) for each in hand_outs),
        lost=len(events.keys() - done.keys()),
        duplicated=unflagged(hand_outs),
        wrong=sum(not is_right(each, events.get(each.number)) for each in hand_outs),
        misrecorded=sum(books.get(event.message, 0) != 1 for event in events.values()),
        p50=p50,
        p95=p95,
    )


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
