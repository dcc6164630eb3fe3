"""Whether everything arrived, once and in order: computed from the logs of publishers and receivers only."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import quantiles

from broker_project.stack.demo.arrivals import inverted, is_accepted, is_final, repeated, sets_aside
from broker_project.stack.demo.cast import Sample
from broker_project.stack.demo.records import Published, Request


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
