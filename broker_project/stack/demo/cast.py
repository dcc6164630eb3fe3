"""Who takes part in the demo: publishers, event types, subscribers, and how each receiver behaves."""

from dataclasses import dataclass
from enum import StrEnum

TRACKER = ("Tracker.Issue.Created", "Tracker.Issue.Updated", "Tracker.Issue.Commented")
SHOP = ("Shop.Order.Placed", "Shop.Order.Paid", "Shop.Order.Shipped")
PUBLISHERS = {"tracker": TRACKER, "shop": SHOP}
REPORT = "Tracker.Report.Requested"
"""Of kind QUEUE: each is for one of the workers."""
PRICE = "Shop.Price.Asked"
"""Of kind SYNC: whoever publishes it gets the answer of its only subscriber."""
OFFICE = "office"
"""Publishes reports and prices."""
KINDS = {**dict.fromkeys(TRACKER + SHOP, "TOPIC"), REPORT: "QUEUE", PRICE: "SYNC"}
REGIONS = ("eu", "us", "apac")
"""Publishers name the region in the header `FILTER_STRING`."""


class Behaviour(StrEnum):
    """What a receiver does beside answering 200."""

    STEADY = "steady"
    """Nothing."""

    FAILING = "sometimes 500"
    """Answers 500 to the first request, sometimes also to the second, of some events."""

    DOWN = "down for 4 s"
    """Refuses connections for a while."""

    OVERLOADED = "503 for 4 s"
    """Answers 503 to everything for a while."""

    PICKY = "rejects some"
    """Answers 404 or 422 to some events."""

    ANSWERING = "knows the answer"
    """Answers 200 with what was asked for."""

    FETCHING = "fetches"
    """Cannot be called, and has a mailbox."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One sample subscriber."""

    name: str
    behaviour: Behaviour
    event_types: tuple[str, ...]
    region: str = ""
    """Only events of this region; empty: all."""

    def wants(self, event_type: str, region: str) -> bool:
        """Say whether an event is for this subscriber."""
        return event_type in self.event_types and self.region in {"", region}


SUBSCRIBERS = (
    Sample("warehouse", Behaviour.STEADY, SHOP),
    Sample("eu-support", Behaviour.STEADY, TRACKER, region="eu"),
    Sample("search-index", Behaviour.FAILING, TRACKER),
    Sample("mail-gateway", Behaviour.DOWN, ("Tracker.Issue.Commented", "Shop.Order.Shipped")),
    Sample("billing", Behaviour.OVERLOADED, ("Shop.Order.Placed", "Shop.Order.Paid")),
    Sample("audit", Behaviour.PICKY, TRACKER + SHOP),
)

WORKERS = (
    Sample("printer-1", Behaviour.STEADY, (REPORT,)),
    Sample("printer-2", Behaviour.DOWN, (REPORT,)),
    Sample("printer-3", Behaviour.STEADY, (REPORT,)),
)
PRICE_LIST = Sample("price-list", Behaviour.ANSWERING, (PRICE,))
RECEIVERS = (*SUBSCRIBERS, *WORKERS, PRICE_LIST)

ARCHIVE = Sample("archive", Behaviour.FETCHING, TRACKER + SHOP)
READERS = ("archive-1", "archive-2", "archive-3")
"""Processes that share the archive's mailbox."""

KILLED = "archive-3"
"""Dies once, in the middle of its work."""

KILLED_AFTER = 100
"""How many events it has archived by then."""

ARCHIVING_SECONDS = 0.02
"""How long each event takes: meanwhile others come, to be fetched together."""

ACK_SECONDS = 5
"""After which what it held is for the others."""

REFUSAL_SECONDS = 4.0
"""How long the receivers that are down or overloaded are so."""

REFUSAL_AFTER = 100
"""How many events they take before that."""


def wants_reply(number: int) -> bool:
    """Say whether the office wants to know when this report has been printed."""
    return number % 20 == 0


def price_of(number: int) -> int:
    """Return what the price list says."""
    return 100 + number * 37 % 9_900


def failures_of(number: int) -> int:
    """Return how many requests with this event the failing receiver answers with 500."""
    if number % 20:
        return 0
    return 1 if number % 60 else 2


def rejection_of(number: int) -> int:
    """Return the picky receiver's answer to this event."""
    if number % 25 == 0:
        return 404
    return 422 if number % 40 == 0 else 200


def is_archived(number: int, redeliveries: int) -> bool:
    """Say whether a reader of the archive gets done with this event: with some not the first time."""
    return number % 50 != 0 or redeliveries > 0
