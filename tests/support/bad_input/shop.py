"""One refused request and its answer, and the shop that requests are sent to: nothing in it may change."""

import datetime as dt
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import orjson
import psycopg
import requests

from broker_project.stack.load.wait import wait_until
from tests.support.raw_http import Answer, Headers, KeptConnection
from tests.support.real_broker import TIMEOUT_SECONDS, Broker

JSON: Final = "application/json"

UNKNOWN: Final = 10**17
"""An id that nothing has."""
TABLES: Final = """
SELECT relname FROM pg_class
 WHERE relnamespace = 'public'::regnamespace AND relkind IN ('r', 'p') AND NOT relispartition
   AND relname NOT LIKE ALL (%s) ORDER BY relname
"""
OF_THE_BROKERS_OWN: Final = ["django\\_%", "%storageday", "analytics\\_%", "%volatilecount", "%minute%", "%turnfloor"]
"""Tables in which it writes by itself: what beat has done, days made ahead, scheduled runs, counts, floors."""
CONFIGURED: Final = "subscriptions_"
"""How the tables begin of what somebody configures: here a changed row is seen too."""
USED: Final = "subscriptions_apikey"
"""But it is noted when a key was used last."""


@dataclass(frozen=True, slots=True)
class Row:
    """A request and what it is answered; `<names>` in it stand for what the shop has, see `shops.Shop.names`."""

    what: str
    """In words, for the report."""
    method: str
    path: str
    status: int
    code: str
    body: bytes = b""
    headers: dict[str, str | bytes] = field(default_factory=dict)
    key: str = "management"
    """Whose key goes with it; empty: nobody's."""

    def __str__(self) -> str:
        return f"{self.method} {self.path[:60]}: {self.what}"

    @property
    def sent_headers(self) -> Headers:
        """Return the headers as bytes; JSON is what a body is unless they say otherwise."""
        given = {"Content-Type": JSON, **self.headers} if self.body else self.headers
        return [(name, value if isinstance(value, bytes) else value.encode()) for name, value in given.items() if value]


def text(value: object) -> bytes:
    """Return a value as JSON."""
    return orjson.dumps(value)


def nested(levels: int) -> bytes:
    """Return an array in an array in an array."""
    return b"[" * levels + b"]" * levels


@dataclass(frozen=True, slots=True)
class Shop:
    """Somebody who publishes, and somebody who fetches."""

    broker: Broker
    wire: KeptConnection
    books: "psycopg.Connection[Any]"
    keys: dict[str, str] = field(default_factory=dict)
    """Tokens, by who holds them."""
    names: dict[str, str] = field(default_factory=dict)
    """What `<name>` stands for in a row."""
    tables: list[str] = field(default_factory=list)
    last_seen: dict[str, tuple[int, int]] = field(default_factory=dict)

    def ask(self, row: Row) -> Answer:
        """Send what a row says."""
        key = [("Authorization", f"Bearer {self.keys[row.key]}".encode())] if row.key else []
        headers = [(name, self._filled(value)) for name, value in row.sent_headers]
        return self.wire.ask(row.method, self._filled(row.path.encode()), [*key, *headers], self._filled(row.body))

    def stored(self) -> dict[str, tuple[int, int]]:
        """Return of each table how many rows it has and, of what is configured, a sum over all of them."""
        counts = " UNION ALL ".join(self._counted(table) for table in self.tables)
        return {table: (rows, total) for table, rows, total in self.books.execute(counts.encode())}

    def refusal(self, row: Row) -> tuple[int, str]:
        """Return status and code of the answer, which has to leave everything as it was."""
        answer = self.ask(row)
        self.assert_unchanged()
        return answer.problem

    def assert_unchanged(self) -> None:
        """Find everything stored as it was when this was asked last; tell what is not."""
        before, after = dict(self.last_seen), self.stored()
        self.last_seen.update(after)
        changed = {table: (before[table], rows) for table, rows in after.items() if before[table] != rows}
        assert changed == {}, "rows before and after, by table"

    def create(self, collection: str, **fields: object) -> Any:
        return self.broker.management.create(collection, **fields)

    def call(self, path: str, body: object = None, key: str = "management", **headers: str) -> Any:
        """POST to the API and return what it answers, which has to be fine."""
        bearer = {"Authorization": f"Bearer {self.keys[key]}"}
        answer = requests.post(
            f"{self.broker.web}/api/v1/{path}", json=body, headers=bearer | headers, timeout=TIMEOUT_SECONDS
        )
        answer.raise_for_status()
        return answer.json()

    def _counted(self, table: str) -> str:
        seen = table.startswith(CONFIGURED) and table != USED
        total = "coalesce(sum(hashtext(t::text)), 0)" if seen else "0"
        return f"SELECT '{table}', count(*), {total} FROM {table} t"

    def _filled(self, given: bytes) -> bytes:
        for name, value in self.names.items():
            given = given.replace(f"<{name}>".encode(), value.encode())
        return given


@contextmanager
def shop_at(broker: Broker) -> Iterator[Shop]:
    """Open a shop at a broker; close it with the endpoints of its subscribers left alone."""
    with psycopg.connect(broker.stack.environment["DATABASE_URL"], autocommit=True, prepare_threshold=1) as books:
        shop = Shop(broker, KeptConnection(broker.web), books)
        shop.tables.extend(table for (table,) in books.execute(TABLES, [OF_THE_BROKERS_OWN]))
        _furnish(shop)
        shop.last_seen.update(shop.stored())
        yield shop
        shop.wire.close()
        broker.inactivate_all()


def _furnish(shop: Shop) -> None:
    broker, names = shop.broker, shop.names
    schema = {"type": "object", "required": ["id"]}
    names |= {kind.lower(): broker.event_type(f"Bad.{kind.title()}", kind) for kind in ("TOPIC", "QUEUE", "SYNC")}
    names["plain"] = broker.event_type("Bad.Plain", content_type="text/plain")
    names["strict"] = broker.event_type("Bad.Strict", schema=schema)
    names["mailbox"] = broker.subscribe("", names["topic"], delivery_mode="PULL").name
    names["neighbour"] = broker.subscribe("", names["topic"], delivery_mode="PULL").name
    names["policy"] = broker.retry_policy()
    names["publisher"] = f"of-{names['topic']}"
    names["sample"] = "http://127.0.0.1:9/never"
    shop.create("publishers", name=names["publisher"])
    shop.keys["management"] = broker.management.token
    _issue_keys(shop)
    _publish(shop)


def _issue_keys(shop: Shop) -> None:
    owners = {"publisher": "publisher", "subscriber": "mailbox", "neighbour": "neighbour"}
    for holder, name in owners.items():
        kind = "publisher" if holder == "publisher" else "subscriber"
        made = shop.create("api-keys", kind=kind.upper(), label="bad input", **{kind: shop.names[name]})
        shop.keys[holder] = made["token"]
        shop.names[f"key of {holder}"] = str(made["id"])


def _publish(shop: Shop) -> None:
    names, get = shop.names, shop.broker.get
    names["message"] = str(shop.call(f"events/{names['topic']}", {})["id"])
    (names["subscription"],) = (str(one["id"]) for one in get("subscriptions", subscriber=names["mailbox"])["items"])
    (names["delivery"],) = (str(one["id"]) for one in get("deliveries", subscriber=names["mailbox"])["items"])
    replay = shop.call("replays", {"subscriber": names["mailbox"]})
    names["replay"] = str(replay["id"])
    wait_until(lambda: get(f"replays/{names['replay']}")["finished_at"])
    now = dt.datetime.now(dt.UTC)
    run = shop.call("summary-runs", {"from": (now - dt.timedelta(hours=1)).isoformat(), "to": now.isoformat()})
    names["run"] = str(shop.call(f"summary-runs/{run['id']}/cancel")["id"])
    names["unknown"] = str(UNKNOWN)
    names["cursor of event types"] = get("event-types", limit="1")["next"].partition("cursor=")[2].partition("&")[0]
