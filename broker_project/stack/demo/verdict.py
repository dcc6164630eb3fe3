"""Whether everything arrived, once and in order: computed from what publishers and receivers recorded."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import quantiles
from typing import Final

from broker_project.stack.load.exchanges import (
    Call,
    Exchange,
    Published,
    copies,
    inverted,
    is_accepted,
    is_final,
    sets_aside,
)

FAULTS: Final = ("lost", "duplicated", "inverted", "wrong", "misrecorded")


@dataclass(frozen=True, slots=True)
class Account:
    """What became of the events for one group of receivers."""

    expected: int
    delivered: int
    rejected: int = 0
    set_aside: int = 0
    """Delivered or rejected after a 5xx that let other events go first."""
    lost: int = 0
    duplicated: int = 0
    """Requests for events that had a final answer; in a shared group only those not flagged as possible duplicates."""
    inverted: int = 0
    """Events that arrived after one published entirely later, without those set aside."""
    wrong: int = 0
    """Requests that were altered, unsigned, or not for this group."""
    misrecorded: int = 0
    """Events that the broker has not recorded as DELIVERED exactly once."""
    p50: float = 0.0
    p95: float = 0.0
    """Seconds from the start of the publish call to the arrival of the accepted request."""
    requests: Mapping[str, int] = field(default_factory=dict)
    """Requests by receiver."""
    accepted: Mapping[str, int] = field(default_factory=dict)
    """Events that each receiver accepted first."""


def judge(
    expected: Sequence[Published],
    exchanges: Sequence[Exchange],
    *,
    is_ordered: bool = True,
    recorded: Mapping[int, int] | None = None,
) -> Account:
    """Judge the exchanges of one group.

    `recorded` is given for a group that shares jobs or messages: the number of DELIVERED deliveries by message id.
    """
    events = {event.number: event for event in expected}
    arrived = sorted(exchanges, key=lambda each: each.at)
    known = [each for each in arrived if each.number in events]
    ended = {each.number: each for each in reversed(known) if is_final(each.status)}
    aside = {each.number for each in known if sets_aside(each.status)}
    accepted = [each for each in ended.values() if is_accepted(each.status)]
    repeated = [each for each in copies(known, is_final) if recorded is None or not each.flagged]
    p50, p95 = percentiles([each.at - events[each.number].started for each in accepted])
    return Account(
        expected=len(events),
        delivered=len(accepted),
        rejected=len(ended) - len(accepted),
        set_aside=len(aside & ended.keys()),
        lost=len(events.keys() - ended.keys()),
        duplicated=len(repeated),
        inverted=inverted([events[each.number] for each in known if each.number not in aside]) if is_ordered else 0,
        wrong=sum(each.altered or each.number not in events for each in arrived),
        misrecorded=sum(recorded.get(each.message_id) != 1 for each in expected) if recorded is not None else 0,
        p50=p50,
        p95=p95,
        requests=Counter(each.endpoint for each in arrived),
        accepted=Counter(each.endpoint for each in accepted),
    )


def judge_calls(planned: int, calls: Sequence[Call], answers: Mapping[int, bytes]) -> Account:
    """Judge SYNC calls by the endpoint's own answer to each."""
    right = [call.seconds for call in calls if is_accepted(call.status) and call.body == answers[call.number]]
    p50, p95 = percentiles(right)
    return Account(planned, len(right), lost=planned - len(right), p50=p50, p95=p95)


def percentiles(seconds: Sequence[float]) -> tuple[float, float]:
    """Return the 50th and the 95th percentile, 0 of nothing."""
    if len(seconds) < 2:  # noqa: PLR2004 - quantiles need two
        return (seconds[0], seconds[0]) if seconds else (0.0, 0.0)
    cuts = quantiles(seconds, n=20)
    return cuts[9], cuts[18]


@dataclass(frozen=True, slots=True)
class Verdict:
    """The accounts of a whole run."""

    planned: int
    """Events that were to be published."""
    published: int
    announced: int
    """Deliveries to subscribers of topics that the broker announced when it accepted the events."""
    topics: Mapping[str, Account]
    """By subscriber, the one with the mailbox included."""
    others: Mapping[str, Account]
    """Of jobs, replies and calls."""

    @property
    def holds(self) -> bool:
        """Whether the broker has kept its promises."""
        is_complete = self.published == self.planned and self.announced == self.deliveries
        return is_complete and not any(map(self.total, FAULTS))

    @property
    def deliveries(self) -> int:
        """Deliveries to subscribers of topics that there had to be."""
        return sum(account.expected for account in self.topics.values())

    def total(self, name: str) -> int:
        """Return a figure over all accounts."""
        return sum(getattr(account, name) for account in (*self.topics.values(), *self.others.values()))

    @property
    def counts(self) -> dict[str, int]:
        """The figures of the last line: a job, a reply and a call are one delivery each."""
        names = ("delivered", "rejected", "lost", "duplicated", "inverted")
        return {
            "published": self.published,
            "deliveries": self.total("expected"),
            **{name: self.total(name) for name in names},
        }

    def __str__(self) -> str:
        """Return the last line of the demo."""
        return "demo: " + ", ".join(f"{name} {count}" for name, count in self.counts.items())
