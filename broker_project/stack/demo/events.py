"""The demo's subscribers, and sample events of an issue tracker and a shop: JSON of 0.4 to 3 KB."""

import json
import random
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from broker_project.stack.load.publisher import Event

PEOPLE: Final = ("amira", "björn", "chen", "dörte", "emeka", "françoise", "goran", "hanna")
GOODS: Final = ("kettle", "lamp", "notebook", "bicycle bell", "garden hose", "chess set", "headphones", "café cups")
PHRASES: Final = (
    "the list of orders stays empty",
    "after filtering by date",
    "customer reports wrong totals",
    "on the second page",
    "cannot reproduce on staging",
    "please attach logs",
    "überprüft und bestätigt",
    "works again since the last deployment",
)

TRACKER: Final = ("Tracker.Issue.Created", "Tracker.Issue.Updated", "Tracker.Issue.Commented")
SHOP: Final = ("Shop.Order.Placed", "Shop.Order.Paid", "Shop.Order.Shipped")
REPORT: Final = "Tracker.Report.Requested"
"""Of kind QUEUE: each is a job for one of the printers."""
PRICE: Final = "Shop.Price.Asked"
"""Of kind SYNC: the publisher gets the answer of its only subscriber."""
KINDS: Final = {**dict.fromkeys(TRACKER + SHOP, "TOPIC"), REPORT: "QUEUE", PRICE: "SYNC"}
PUBLISHERS: Final = {"tracker": TRACKER, "shop": SHOP, "office": (REPORT, PRICE)}
REGIONS: Final = ("eu", "us", "apac")
"""Publishers name the region in the filter string."""


class Behaviour(StrEnum):
    """What a receiver does instead of answering 200 at once."""

    STEADY = "steady"
    FAILING = "sometimes 500"
    """Answers 500 to the first one or two requests for some events."""
    DOWN = "down for 4 s"
    """Refuses connections for a while."""
    OVERLOADED = "503 for 4 s"
    """Answers 503 to everything for a while."""
    PICKY = "rejects some"
    """Answers 404 or 422 to some events."""
    ANSWERING = "knows the answer"
    """Answers a SYNC call with the price."""
    FETCHING = "mailbox"
    """Cannot be called; has a mailbox, whose readers return some messages and one of which is killed."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One sample subscriber."""

    name: str
    behaviour: Behaviour
    event_types: tuple[str, ...]
    region: str = ""
    """Only events of this region; empty: all."""


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
"""Is killed once in the middle of its work."""


def wants_reply(number: int) -> bool:
    """Return whether the office wants a reply to this report."""
    return number % 20 == 0


def price_of(number: int) -> bytes:
    """Return the answer of the price list to a SYNC call."""
    return b'{"cents": %d}' % (100 + number * 37 % 9_900)


def event(number: int, event_type: str) -> Event:
    """Return the sample event with this number, always the same one."""
    chance = random.Random(number)  # noqa: S311 - samples, no secrets
    region = chance.choice(REGIONS)
    content = _order(chance) if event_type.startswith("Shop.") else _issue(chance)
    body = {"event": event_type, "number": number, "region": region, "sent_by": chance.choice(PEOPLE), **content}
    return Event(number, event_type, json.dumps(body, ensure_ascii=False).encode(), region)


def is_sample(body: bytes) -> bool:
    """Return whether a body is that of a sample event, byte for byte."""
    content = json.loads(body)
    return body == event(content["number"], content["event"]).body


def _issue(chance: random.Random) -> dict[str, Any]:
    comments = [
        {"author": chance.choice(PEOPLE), "text": _text(chance, chance.randint(2, 14))}
        for _ in range(chance.randint(0, 5))
    ]
    return {
        "issue": {
            "key": f"{chance.choice(('WEB', 'API', 'OPS'))}-{chance.randint(1, 9999)}",
            "title": _text(chance, 2),
            "description": _text(chance, chance.randint(8, 30)),
            "labels": chance.sample(("bug", "regression", "customer", "security", "docs"), 2),
            "estimate_hours": round(chance.uniform(0.5, 40), 2),
        },
        "comments": comments,
    }


def _order(chance: random.Random) -> dict[str, Any]:
    items: list[dict[str, Any]] = [
        {"sku": f"SKU-{chance.randint(1000, 9999)}", "name": name, "count": chance.randint(1, 5), "cents": cents}
        for name in chance.sample(GOODS, chance.randint(1, 8))
        for cents in [chance.randint(199, 49_999)]
    ]
    total = sum(item["count"] * item["cents"] for item in items)
    order = {"id": f"{chance.getrandbits(64):016x}", "items": items, "total_cents": total}
    return {"order": order, "note": _text(chance, chance.randint(8, 12))}


def _text(chance: random.Random, phrases: int) -> str:
    return ", ".join(chance.choices(PHRASES, k=phrases))
