"""Sample events as an issue tracker and a shop would publish them: nested JSON of 0.5 to 4 KB."""

import json
import random
from dataclasses import dataclass
from enum import StrEnum
from hashlib import sha256
from typing import Any

PEOPLE = ("amira", "björn", "chen", "dörte", "emeka", "françoise", "goran", "hanna")


GOODS = ("kettle", "lamp", "notebook", "bicycle bell", "garden hose", "chess set", "headphones", "café cups")
EARLIEST, LATEST = 1_790_000_000, 1_795_000_000
"""Times in the samples, in seconds since 1970."""

Json = dict[str, Any]

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

PHRASES = (
    "the list of orders stays empty",
    "after filtering by date",
    "customer reports wrong totals",
    "on the second page",
    "cannot reproduce on staging",
    "please attach logs",
    "überprüft und bestätigt",
    "works again since the last deployment",
)


@dataclass(frozen=True, slots=True)
class Event:
    """One event to be published; its number also stands in its body."""

    number: int
    type: str
    region: str
    body: Json


def event(number: int, event_type: str) -> Event:
    """Return the sample event with this number: always the same one."""
    chance = random.Random(number)  # noqa: S311 - samples, no secrets
    content = order(chance) if event_type.startswith("Shop.") else issue(chance)
    region = chance.choice(REGIONS)
    body = {"event": event_type, "number": number, "region": region, "sent_by": person(chance), **content}
    return Event(number, event_type, region, body)


def text_of(content: Json) -> bytes:
    """Return JSON as it is sent: an event's body looks the same alone and in a batch."""
    return json.dumps(content, ensure_ascii=False).encode()


def fingerprint(body: bytes) -> str:
    """Return a hash of a body as it is sent."""
    return sha256(body).hexdigest()


def issue(chance: random.Random) -> Json:
    """Return an issue with its comments and last changes."""
    return {
        "issue": {
            "key": f"{chance.choice(('WEB', 'API', 'OPS'))}-{chance.randint(1, 9999)}",
            "title": sentence(chance, 2),
            "description": sentence(chance, chance.randint(4, 30)),
            "priority": chance.choice(("low", "normal", "high", "urgent")),
            "assignee": person(chance),
            "labels": chance.sample(("bug", "regression", "customer", "security", "docs"), 2),
            "estimate_hours": round(chance.uniform(0.5, 40), 2),
        },
        "comments": [
            {"author": person(chance), "at": instant(chance), "text": sentence(chance, chance.randint(2, 14))}
            for _ in range(chance.randint(0, 5))
        ],
        "changes": {"status": {"from": "open", "to": chance.choice(("in progress", "done", None))}},
    }


def order(chance: random.Random) -> Json:
    """Return an order with its items and addresses."""
    items: list[Json] = [
        {"sku": f"SKU-{chance.randint(1000, 9999)}", "name": name, "count": chance.randint(1, 5), "cents": cents}
        for name in chance.sample(GOODS, chance.randint(1, 8))
        for cents in [chance.randint(199, 49_999)]
    ]
    return {
        "order": {
            "id": f"{chance.getrandbits(64):016x}",
            "placed_at": instant(chance),
            "customer": person(chance),
            "items": items,
            "total_cents": sum(item["count"] * item["cents"] for item in items),
            "gift": chance.random() < 0.1,  # noqa: PLR2004 - one in ten
        },
        "addresses": {kind: address(chance) for kind in ("delivery", "invoice")},
        "note": sentence(chance, chance.randint(0, 9)),
    }


def person(chance: random.Random) -> Json:
    """Return somebody."""
    name = chance.choice(PEOPLE)
    return {"name": name.title(), "email": f"{name}@example.com", "id": chance.randint(1, 500)}


def address(chance: random.Random) -> Json:
    """Return a place."""
    return {
        "street": f"{chance.choice(GOODS).title()} Street {chance.randint(1, 99)}",
        "zip": chance.randint(10000, 99999),
    }


def instant(chance: random.Random) -> int:
    """Return a time, in seconds since 1970."""
    return chance.randint(EARLIEST, LATEST)


def sentence(chance: random.Random, phrases: int) -> str:
    """Return a text of so many phrases."""
    return ", ".join(chance.choices(PHRASES, k=phrases))


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
