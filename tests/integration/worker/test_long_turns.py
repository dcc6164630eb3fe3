"""The turn of a line that sends several at a time ends too, however slow some of its requests are (contract 4.14)."""

import json
from collections.abc import Callable, Iterable
from itertools import count

import pytest

from broker_project.core import boot_clock
from broker_project.stack.load.receiver import Receiver
from delivery.limits import HANGS_SECONDS
from delivery.worker import leases, line
from subscriptions.models import EventKind
from tests.support import broker, factories, stepped_worker
from tests.support.stepped_worker import Request, SteppedWorker

pytestmark = pytest.mark.behaviour("4.14")

TURN, DRAIN, LONG, LONGEST = 3.0, 0.6, 10.0, 16.0
"""Seconds, so that this does not take minutes."""
STEP_SECONDS = HANGS_SECONDS * 0.8
STEPS = {"slow": 20, "snail": 27, "steady": 2, "fast": 1}
"""How long requests take: so that nearly always one hangs."""
SLOTS = len(STEPS) + 1
BACKLOG = 40
"""Messages of the slow kind that are there when nothing more is sent of it: more than fill a page."""


class Run:
    """A worker with one line, which always has slow and fast work; what it starts, by step."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, publish: Callable[[Iterable[str]], object]) -> None:
        self.step, self.backlog_in = 0, 0
        self.started: list[set[str]] = [set()]
        self._publish = publish
        self._ends: dict[Request, int] = {}
        self.worker = SteppedWorker("stepped", self._on_request)
        began = boot_clock.since_boot()
        monkeypatch.setattr(leases, "TURN_SECONDS", TURN)
        monkeypatch.setattr(line, "DRAIN_SECONDS", DRAIN)
        monkeypatch.setattr(line, "LONG_TURN_SECONDS", LONG)
        monkeypatch.setattr(line, "LONGEST_TURN_SECONDS", LONGEST)
        monkeypatch.setattr(boot_clock, "since_boot", lambda: began + self.step * STEP_SECONDS)

    def until_the_line_is_let_go(self) -> float:
        """Return after how many seconds that was. There is one message of each slow kind at a time."""
        self._publish(STEPS)
        assert len(self.worker.take(broker.lines_with_due_work()[:1])) == 1
        unanswered = {*STEPS}
        while self.worker.lines:
            assert self.step * STEP_SECONDS < 2 * LONGEST
            self.step += 1
            self.started.append(set())
            ended = [request for request, step in self._ends.items() if step <= self.step]
            unanswered.difference_update(map(kind_of, ended))
            self._publish({*STEPS} - unanswered | {"fast"})
            if self.step == self.backlog_in:
                self._publish(["slow"] * BACKLOG)
            unanswered.update(STEPS)
            self.worker.hint()
            self.worker.answer_all({request: 200 for request in ended if self._ends.pop(request)})
        return self.step * STEP_SECONDS

    def _on_request(self, request: Request) -> None:
        self._ends[request] = self.step + STEPS[kind_of(request)]
        self.started[self.step].add(kind_of(request))


def kind_of(request: Request) -> str:
    assert request.slot.in_flight
    key, path = request.slot.in_flight.ordering_key, request.destination.url.rpartition("/")[2]
    return key if key in STEPS else path


@pytest.fixture(params=["CONCURRENT", "KEYED", "QUEUE"])
def publish(request: pytest.FixtureRequest, receiver: Receiver, storage: None) -> Callable[[Iterable[str]], object]:
    """Return what gives work of some kinds to a line of each sort that sends several at a time."""
    is_queue = request.param == "QUEUE"
    owner = factories.subscriber(
        processing="SERIAL" if is_queue else request.param, concurrency=SLOTS, ordering_key="$$->'Body'->>'key'"
    )
    types = {name: factories.event_type(kind=EventKind.QUEUE if is_queue else EventKind.TOPIC) for name in STEPS}
    for name, event_type in types.items():
        path = "/a" if request.param == "KEYED" else f"/{name}"
        factories.subscription(owner, event_type=event_type, endpoint=receiver.url(path))
    times = broker.QUEUE_SENDERS if is_queue else 1
    return lambda names: [
        broker.publish_bodies(types[name], *[json.dumps({"key": name}).encode()] * times) for name in names
    ]


def test_a_turn_with_slow_requests_ends_and_others_do_not_wait_for_them(
    publish: Callable[[Iterable[str]], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stepped_worker, "MAX_IN_FLIGHT", SLOTS)
    run = Run(monkeypatch, publish)
    run.backlog_in = int(LONG / STEP_SECONDS) + 2
    assert LONG <= run.until_the_line_is_let_go() < LONGEST
    for kind in ("fast", "steady"):
        seen = [kind in kinds for kinds in run.started[:-1]]
        assert (kind, [at for at in range(run.step - 1) if not any(seen[at : at + STEPS[kind]])]) == (kind, [])


def test_a_turn_ends_also_if_something_else_is_slow_every_time(
    receiver: Receiver, storage: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner = factories.subscriber(processing="KEYED", concurrency=4, ordering_key="$$->'Body'->>'key'")
    kind = factories.subscription(owner, endpoint=receiver.url("/slow")).event_type
    keys = count()
    run = Run(monkeypatch, lambda _: broker.publish_bodies(kind, json.dumps({"key": str(next(keys))}).encode()))
    assert LONGEST <= run.until_the_line_is_let_go() < LONGEST + STEPS["slow"] * STEP_SECONDS + 2 * STEP_SECONDS
