"""Whether everything arrived, once and in order: computed from what publishers and receivers recorded."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import quantiles
from typing import Final

from broker_project.stack.demo.events import ARCHIVE, SUBSCRIBERS
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

OF_TOPICS: Final = frozenset({ARCHIVE.name, *(sample.name for sample in SUBSCRIBERS)})
"""The groups to which the broker announces a delivery when it accepts an event."""


@dataclass(frozen=True, slots=True)
class Account:
    """What one group of receivers got of its events."""

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
    """Seconds from the start of the publish call to the arrival of the accepted request, without the burst."""
    burst_p95: float = 0.0
    """The same of the burst, whose events wait for each other."""
    accepted: Mapping[str, int] = field(default_factory=dict)
    """Events that each receiver accepted first."""


def judge(
    expected: Sequence[Published],
    exchanges: Sequence[Exchange],
    *,
    is_ordered: bool = True,
    recorded: Mapping[int, int] | None = None,
    burst: Collection[int] = (),
) -> Account:
    """Judge the exchanges of one group.

    `recorded` is given for a group that shares jobs or messages: the number of DELIVERED deliveries by message id.
    `burst`: the numbers of events that were published all at once.
    """
    events = {event.number: event for event in expected}
    arrived = sorted(exchanges, key=lambda each: each.at)
    known = [each for each in arrived if each.number in events]
    ended = {each.number: each for each in reversed(known) if is_final(each.status)}
    aside = {each.number for each in known if sets_aside(each.status)}
    accepted = [each for each in ended.values() if is_accepted(each.status)]
    repeated = [each for each in copies(known, is_final) if recorded is None or not each.flagged]
    seconds = {each.number: each.at - events[each.number].started for each in accepted}
    p50, p95 = percentiles([took for number, took in seconds.items() if number not in burst])
    _, burst_p95 = percentiles([took for number, took in seconds.items() if number in burst])
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
        burst_p95=burst_p95,
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
    accounts: Mapping[str, Account]
    """By group; a job, a reply and a call are one delivery each."""

    @property
    def problems(self) -> list[str]:
        """What went wrong, in one line each."""
        deliveries = sum(account.expected for name, account in self.accounts.items() if name in OF_TOPICS)
        found = []
        if missing := self.planned - self.published:
            found.append(f"{missing} events could not be published, or were not answered")
        if self.announced != deliveries:
            found.append(f"the broker announced {self.announced} deliveries, and not {deliveries}")
        if wrong := self.total("wrong"):
            found.append(f"{wrong} requests were altered, unsigned or not for their receiver")
        if misrecorded := self.total("misrecorded"):
            found.append(f"{misrecorded} jobs and fetched events are not recorded by the broker as done once")
        return found + [f"{name} {self.total(name)}" for name in ("lost", "duplicated", "inverted") if self.total(name)]

    def total(self, name: str) -> int:
        """Return a figure over all accounts."""
        return sum(getattr(account, name) for account in self.accounts.values())

    def __str__(self) -> str:
        """Return the last line of the demo."""
        names = ("delivered", "rejected", "lost", "duplicated", "inverted")
        counts = {"published": self.published, "deliveries": self.total("expected")}
        counts |= {name: self.total(name) for name in names}
        return "demo: " + ", ".join(f"{name} {count}" for name, count in counts.items())
