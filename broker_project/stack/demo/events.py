"""Sample events as an issue tracker and a shop would publish them: nested JSON of 0.5 to 4 KB."""

import json
import random
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from broker_project.stack.demo.cast import REGIONS

PEOPLE = ("amira", "björn", "chen", "dörte", "emeka", "françoise", "goran", "hanna")
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
GOODS = ("kettle", "lamp", "notebook", "bicycle bell", "garden hose", "chess set", "headphones", "café cups")
EARLIEST, LATEST = 1_790_000_000, 1_795_000_000
"""Times in the samples, in seconds since 1970."""

Json = dict[str, Any]


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
