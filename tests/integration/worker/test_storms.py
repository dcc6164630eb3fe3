"""Everything at once, in real threads over real sockets: two workers, publishers, people, faults (contract 4)."""

import asyncio
import contextlib
import itertools
import random
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator

import pytest
from django.db import Error, connection
from hypothesis import settings

from broker_project.core.db import forget_connection, rows
from broker_project.stack.load.receiver import Behaviour, Received, Receiver, answer
from broker_project.stack.load.wait import wait_until
from delivery.models import Attempt, Delivery, Line, LineEvent
from delivery.operations import cancel_deliveries_of
from delivery.statuses import LEGAL_CHANGES
from subscriptions.models import Subscriber, Subscription
from tests.support import broker
from tests.support.behaviours import close, reset
from tests.support.factories import event_type, subscriber, subscription

SECONDS = 5.0 if settings().max_examples <= 100 else 120.0
PUBLISHERS = 3
WEATHER: list[tuple[int, Behaviour]] = [
    (88, answer()),
    (3, answer(404)),
    (4, answer(500)),
    (2, answer(503)),
    (1, answer(302)),
    (1, close),
    (1, reset),
]


async def changeable(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
    """Answer mostly well."""
    (behaviour,) = random.choices([one for _, one in WEATHER], [weight for weight, _ in WEATHER])  # noqa: S311 - weather
    return await behaviour(reader, writer)


class Storm:
    """Three subscribers that only their endpoints, their workers and the database trouble, and three that people do."""

    def __init__(self, receiver: Receiver) -> None:
        self.receiver = receiver
        self.kinds = [event_type() for _ in range(3)]
        self.calm = [self.subscribed(f"calm-{number}") for number in range(3)]
        self.stormy = [self.subscribed(f"stormy-{number}") for number in range(3)]
        self.until = time.monotonic() + SECONDS
        self.unknown: set[bytes] = set()
        """Published, but not answered: it may be stored or not."""
        self.unclean_ends = 0
        self.has_cancelled = False
        """Something that waited."""
        self.failures: list[BaseException] = []

    def subscribed(self, name: str) -> Subscriber:
        """Return a subscriber of every event type, all at one path."""
        made = subscriber(name)
        self.receiver.on(f"/{name}", changeable)
        for kind in self.kinds:
            subscription(made, kind, self.receiver.url(f"/{name}"))
        return made

    def publish(self, who: int) -> None:
        for number in itertools.count():
            if time.monotonic() > self.until:
                return
            body = b"%d %d" % (who, number)
            try:
                broker.publish_bodies(random.choice(self.kinds), body)  # noqa: S311 - weather
            except Error:
                self.unknown.add(body)
                forget_connection()
            time.sleep(0.005)

    def trouble(self) -> None:
        stormy = [*Subscription.objects.filter(subscriber__in=self.stormy)]
        while time.monotonic() < self.until:
            one = random.choice(stormy)  # noqa: S311 - weather
            acts: list[Callable[[], object]] = [
                lambda: broker.inactivate(one),  # noqa: B023 - called at once
                lambda: broker.activate(one),  # noqa: B023 - called at once
                lambda: Subscription.objects.get(pk=one.pk).save(),  # noqa: B023 - called at once
                lambda: self.cancel(one),  # noqa: B023 - called at once
                broker.make_due,
                self.freeze_somebody,
                self.cut_connections,
            ]
            (act,) = random.choices(acts, [5, 5, 5, 2, 5, 1, 1])  # noqa: S311 - weather
            with contextlib.suppress(Error):
                act()
            time.sleep(0.02)

    def cancel(self, one: Subscription) -> None:
        self.has_cancelled |= cancel_deliveries_of(one.pk, reason="unwanted")[0] > 0

    def freeze_somebody(self) -> None:
        line = random.choice([*Line.objects.filter(lease_until__isnull=False)] or [None])  # noqa: S311 - weather
        if line:
            self.unclean_ends += 1
            broker.expire_lease(line)

    def cut_connections(self) -> None:
        self.unclean_ends += 2 * 6  # a claim nobody heard of, at most one a line and worker
        broker.terminate_backends()

    def run(self, act: Callable[[], None]) -> None:
        try:
            act()
        except BaseException as failure:  # noqa: BLE001 - reported by the test
            self.failures.append(failure)
        finally:
            forget_connection()

    def rage(self) -> None:
        acts: list[Callable[[], None]] = [self.trouble]
        acts += [lambda who=who: self.publish(who) for who in range(PUBLISHERS)]  # type: ignore[misc]
        threads = [threading.Thread(target=self.run, args=[act]) for act in acts]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not self.failures

    def abate(self) -> None:
        """Let everything be sent now."""
        forget_connection()
        for path in [f"/{one.name}" for one in (*self.calm, *self.stormy)]:
            self.receiver.on(path, answer())
        for one in Subscription.objects.all():
            broker.activate(one)
        for line in Line.objects.filter(lease_until__isnull=False):  # claimed, and nobody heard of it
            self.unclean_ends += 1
            broker.expire_lease(line)
        wait_until(
            self._calms_down, 180, saying=lambda: [*Delivery.objects.open().values()[:3], *Line.objects.values()]
        )

    def _calms_down(self) -> bool:
        broker.make_due()
        time.sleep(0.1)
        return not broker.unfinished()


WATCH = """
CREATE TABLE seen (id bigint, before text, after text);
CREATE FUNCTION see() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO seen VALUES (OLD.id, OLD.status, CASE TG_OP WHEN 'UPDATE' THEN NEW.status END);
  RETURN NULL;
END $$;
CREATE TRIGGER see AFTER UPDATE OR DELETE ON delivery_open FOR EACH ROW EXECUTE FUNCTION see();
"""
CHANGES = """
SELECT DISTINCT s.before, COALESCE(s.after, d.status) FROM seen s LEFT JOIN delivery_delivery d ON d.id = s.id
"""


@pytest.fixture
def changes_seen(storage: None) -> Iterator[Callable[[], set[tuple[str, str]]]]:
    """Watch the statuses of open deliveries; return the changes seen so far."""
    with connection.cursor() as cursor:
        cursor.execute(WATCH)
    yield lambda: {(before, after) for before, after in rows(CHANGES)}
    with connection.cursor() as cursor:
        cursor.execute("DROP TRIGGER see ON delivery_open; DROP FUNCTION see; DROP TABLE seen")


@pytest.fixture
def storm(changes_seen: object, receiver: Receiver) -> Storm:
    with broker.running_worker("one", deadline_seconds=2.0), broker.running_worker("other", deadline_seconds=2.0):
        storm = Storm(receiver)
        storm.rage()
        storm.abate()
    return storm


@pytest.mark.behaviour("4.10", "4.11", "10.2")
def test_everything_arrives_in_order(storm: Storm, changes_seen: Callable[[], set[tuple[str, str]]]) -> None:
    changes = {(before, after) for before, after in changes_seen() if before != after}
    legal = {(before.value, after.value) for before, possible in LEGAL_CHANGES.items() for after in possible}
    assert changes <= legal
    assert {("PENDING", "IN_FLIGHT"), ("IN_FLIGHT", "DELIVERED")} <= changes
    assert (("PENDING", "CANCELLED") in changes) >= storm.has_cancelled
    requests: dict[int, list[Received]] = defaultdict(list)
    for request in storm.receiver.log:
        requests[request.delivery_id].append(request)
    check_once(requests, storm)
    for one in (*storm.calm, *storm.stormy):
        check_numbers(storm.receiver.of(f"/{one.name}"), one)
    for one in storm.calm:
        check_order(storm.receiver.of(f"/{one.name}"), storm)


def check_once(requests: dict[int, list[Received]], storm: Storm) -> None:
    """Nothing is sent after its final answer, and nothing a second time without saying so."""
    attempts = Counter(Attempt.objects.values_list("delivery_id", flat=True))
    unanswered = Counter(Attempt.objects.filter(status_code=None).values_list("delivery_id", flat=True))
    ends = Attempt.objects.filter(status_code__lt=500).values_list("delivery_id", flat=True)
    assert max(Counter(ends).values()) == 1
    for sent in requests.values():
        for earlier, request in enumerate(sent):
            assert request.is_flagged or int(request.headers["webhook-attempt"]) == earlier + 1
    more = sum(len(sent) - attempts[delivery_id] for delivery_id, sent in requests.items())
    assert more <= storm.unclean_ends, unanswered


def check_numbers(sent: list[Received], one: Subscriber) -> None:
    """Numbers name deliveries, rise by one, and gaps are recorded."""
    pairs = {(request.sequence, request.delivery_id) for request in sent}
    numbers = {number for number, _ in pairs}
    assert len(pairs) == len(numbers) == len({delivery_id for _, delivery_id in pairs})
    recorded = {*LineEvent.objects.filter(line__subscriber=one).values_list("sequence", flat=True)}
    assert {*range(1, max(numbers) + 1)} - numbers <= recorded


def check_order(sent: list[Received], storm: Storm) -> None:
    """Each publisher's messages arrive in its order, and none is missing."""
    first = list(dict.fromkeys(request.body for request in sent))
    for who in range(PUBLISHERS):
        mine = [int(body.split()[1]) for body in first if body.startswith(b"%d " % who)]
        assert mine == sorted(mine)
        missing = {*range(max(mine) + 1)} - {*mine}
        assert missing <= {int(body.split()[1]) for body in storm.unknown if body.startswith(b"%d " % who)}
    assert [request.sequence for request in sent if not request.is_flagged][:1] == [1]
