"""Workers driven by hand, round by round, in the test's own thread: real rounds and database, made-up answers."""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol

import pytest
from django.db import OperationalError

from broker_project.core import boot_clock
from delivery.callbacks.address import callback_terms
from delivery.dispatch.notify import Link
from delivery.http.transfer import LEASE_ENDED, Answer, EncodedRequest, Lease, RequestNotCompleted
from delivery.webhook.destination import Destination
from delivery.webhook.request import Outgoing, add_sequence, request_of
from delivery.worker.buffer import RateLimiter
from delivery.worker.leases import Released
from delivery.worker.line import ActiveLine
from delivery.worker.round_trip import RoundTrip, Settling
from delivery.worker.rounds import NO_LINK, Rounds
from delivery.worker.slots import Settlement, Slot, Slots, SlotState, Withheld
from subscriptions.models import Subscriber
from subscriptions.scripting.jobs import Job, Result
from tests.support.broker import line_of

BUSY = SlotState.SETTLING, SlotState.LOCKED, SlotState.READING
HUNG = "hung"
"""The result of a request that timed out."""
MAX_IN_FLIGHT = 3
"""Messages that a QUEUE sender has under way here."""


@dataclass(eq=False, slots=True)
class Request:
    """One request as it left."""

    slot: Slot
    delivery_id: int
    webhook_id: str
    sequence: int
    attempt: int
    is_flagged: bool
    destination: Destination
    """As it was when the request left."""
    is_recorded: bool = False
    """Whether its answer has been settled."""
    may_have_arrived: bool = True
    result: int | str = 0
    """What it was answered."""
    left_at: int = 0
    arrived_at: int = 0
    """0: it has not."""

    @property
    def line(self) -> ActiveLine:
        return self.slot.line

    @property
    def line_id(self) -> int:
        return self.line.id

    @property
    def epoch(self) -> int:
        return self.line.claim.epoch


class FakeNetwork:
    """Takes requests and keeps them until an answer is made up: what a worker has for a network."""

    def __init__(self, on_request: Callable[[Request], None]) -> None:
        self._on_request = on_request
        self.in_flight: list[Request] = []
        self.abandoned: list[Request] = []
        """They may arrive yet."""

    def start(self, slot: Slot, request: EncodedRequest, *, until: float, lease: Lease) -> None:
        assert slot.in_flight
        assert lease is slot.line
        assert boot_clock.since_boot() < min(until, lease.lease_ends_at)
        headers, delivery = request.headers, slot.in_flight
        sequence, attempt = int(headers.get("Webhook-Sequence", "0")), int(headers["Webhook-Attempt"])
        is_flagged = "Webhook-Possible-Duplicate" in headers
        sent = Request(slot, delivery.id, headers["webhook-id"], sequence, attempt, is_flagged, delivery.destination)
        self.in_flight.append(sent)
        self._on_request(sent)

    def late(self) -> list[Answer]:
        """Abandon what is in flight under a lease that has ended; return what its slots hear."""
        late = [request for request in self.in_flight if boot_clock.since_boot() >= request.line.lease_ends_at]
        self.abandon({request.slot for request in late})
        failure = RequestNotCompleted(LEASE_ENDED, was_sent=True, is_abandoned=True)
        return [Answer(request.slot, 0, b"", b"", 1, failure) for request in late]

    def abandon(self, slots: Collection[Slot]) -> None:
        """Wait for no answer to the requests of these slots."""
        self.abandoned += [request for request in self.in_flight if request.slot in slots]
        self.in_flight = [request for request in self.in_flight if request.slot not in slots]

    def begin(self) -> None:
        """Let what was started go out: it has."""

    gather_seconds = 0.0
    """How long answers are waited for: they come when they are made up."""


class FakeIsolation:
    """Sends over the same network what a worker sends by processes of its own."""

    def __init__(self, wire: FakeNetwork) -> None:
        self._wire = wire

    def is_ready(self, _slot: Slot) -> bool:
        return True

    def start(self, slot: Slot, delivery: Outgoing, sequence: int, started_at: datetime) -> None:
        request = request_of(delivery, int(started_at.timestamp()))
        add_sequence(request, sequence)
        self._wire.start(slot, request, until=math.inf, lease=slot.line)

    def drop(self, line: ActiveLine) -> None:
        """Do nothing: the network abandons."""


class SweepOnly:
    """Lets the sweep find what a line that was let go has left, and hears of nothing else."""

    is_connected = True

    def release(self, lines: Sequence[Released]) -> None:
        """Do nothing."""

    def let_go(self, link: Link, lines: int = 1) -> None:
        """Do nothing: no task is to be told."""


class FakeScripts:
    """Takes scripts and keeps them until a result is made up: what a worker has for processes."""

    def __init__(self) -> None:
        self.running: list[tuple[Slot, Job]] = []

    def run(self, slot: Slot, job: Job) -> None:
        self.running.append((slot, job))

    def patience(self) -> None:
        """Nothing ends by itself."""


class SteppedWorker:
    """A worker whose every round is called for."""

    def __init__(self, name: str, on_request: Callable[[Request], None]) -> None:
        self.name = name
        self.wire = FakeNetwork(on_request)
        self.scripts = FakeScripts()
        self.lines: list[ActiveLine] = []
        sweep_only = SweepOnly()
        self._rounds = Rounds(
            self.wire,  # type: ignore[arg-type]
            sweep_only,  # type: ignore[arg-type]
            callback_terms(),
            sweep_only,  # type: ignore[arg-type]
            worker=name,
            queue_max_in_flight=MAX_IN_FLIGHT,
        )
        self._rounds.scripts = self.scripts  # type: ignore[assignment]
        self._rounds.isolation = FakeIsolation(self.wire)  # type: ignore[assignment]

    def take(self, line_ids: Sequence[int]) -> list[int]:
        """Claim and begin these lines; return those it got."""
        before = self._rounds.all()
        self._rounds.want("topic", line_ids, NO_LINK)
        self._rounds.claim()
        taken = [line for line in self._rounds.all() if line not in before]
        self.lines += taken
        self.go()
        return [line.id for line in taken]

    def hint(self) -> None:
        """Let its lines know of new work, as a publisher does."""
        self._rounds.want("topic", [line.id for line in self.lines], None)

    def answer_all(self, results: Mapping[Request, int | str]) -> None:
        """Let requests be answered in one round, unless their lease has ended: with a status, or not, and why."""
        self._rounds.answered(self.wire.late())
        heard = [request for request in results if request in self.wire.in_flight]
        for request in heard:
            self.wire.in_flight.remove(request)
        self._rounds.answered([_answer(request, results[request]) for request in heard])
        self.go()

    def finish_script(self, which: int, result: Result) -> None:
        """Let a script end."""
        slot, _ = self.scripts.running.pop(which % len(self.scripts.running))
        self._rounds.ran([(slot, result)])
        self.go()

    def finish_scripts(self, result: Result) -> None:
        """Let all scripts end in one round."""
        ended = [(slot, result) for slot, _ in self.scripts.running]
        self.scripts.running.clear()
        self._rounds.ran(ended)
        self.go()

    def end_turn(self) -> None:
        """Let its lines stop after the requests under way."""
        for line in self.lines:
            line.stopping = True

    def pass_time(self) -> None:
        """Let what waits for its rate ask again."""
        self._rounds.rate_limiter = RateLimiter()
        for line in self.lines:
            line.rate_limiter = self._rounds.rate_limiter
            for slot in line.slots:
                slot.resumes_at = 0.0
        self.go()

    def go(self) -> None:
        """Go round until everything waits for answers, or is gone."""
        rounds: Any = self._rounds
        slots: Slots = rounds._slots
        rounds.answered(self.wire.late())
        rounds.go()  # lines that have lapsed are lost
        while (idle := [*filter(_idles_alone, slots[SlotState.IDLE])]) or any(map(slots.any_in, BUSY)):
            for slot in idle:
                slot.line.stopping = True  # nothing comes meanwhile: it has idled enough
            for slot in slots[SlotState.SETTLING]:
                slot.resumes_at = 0.0  # nor anything that it could be settled with
            rounds._look_at = rounds._backoff.until = 0.0
            rounds.go()
        self.lines = [line for line in self.lines if rounds._lines.get(line.id) is line]


def stepped_worker_of(owner: Subscriber) -> tuple[SteppedWorker, list[Request]]:
    """Return a worker that has taken the main line of a subscriber, and the growing list of its requests."""
    requests: list[Request] = []
    worker = SteppedWorker("stepped", requests.append)
    worker.take([line_of(owner).pk])
    return worker, requests


def _idles_alone(slot: Slot) -> bool:
    return not slot.line.is_waiting


def _answer(request: Request, result: int | str) -> Answer:
    if isinstance(result, str):
        failure = RequestNotCompleted(result, was_sent=result != "refused", timed_out=result == HUNG)
        return Answer(request.slot, 0, b"HTTP/1.1 -\r\n", b"", 1, failure)
    return Answer(request.slot, result, b"HTTP/1.1 -\r\n", b"", 1, None)


class SettlementListener(Protocol):
    """What is notified of everything that is settled."""

    def on_settling(self) -> None:
        """Handle that a round is about to be settled."""

    def on_settled(self) -> None:
        """Handle that it has been settled."""

    def on_recorded(self, settlement: Settlement, epoch: int) -> None:
        """Handle an outcome that is recorded under this epoch."""

    def on_withheld(self, withheld: Withheld) -> None:
        """Handle a delivery that is not sent."""


class FailingDatabase:
    """Settles as requested, and fails once when requested, before or after it has settled."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._ask = RoundTrip.ask
        self._listener: SettlementListener | None = None
        self._trouble: tuple[bool, Callable[[], object]] | None = None

        def ask(trip: RoundTrip, kinds: Sequence[Settling], **options: Any) -> None:
            self.ask(trip, kinds, **options)

        monkeypatch.setattr(RoundTrip, "ask", ask)

    @property
    def is_about_to_fail(self) -> bool:
        """Whether the next settle fails."""
        return self._trouble is not None

    def notify(self, listener: SettlementListener) -> None:
        """Reset, and notify `listener` of everything that is settled."""
        self._listener, self._trouble = listener, None

    def fail_next(self, *, after_commit: bool, meanwhile: Callable[[], object]) -> None:
        """Fail the next settle; `meanwhile` happens before it is tried again."""
        self._trouble = after_commit, meanwhile

    def ask(self, trip: RoundTrip, kinds: Sequence[Settling], **options: Any) -> None:
        if all(kind.is_empty for kind in kinds):
            self._ask(trip, kinds, **options)
            return
        trouble, self._trouble = self._trouble, None
        if trouble and not trouble[0]:
            trouble[1]()
            raise OperationalError("it went away before")
        self._ask_and_notify(trip, kinds, **options)
        if trouble:
            trouble[1]()
            raise OperationalError("it went away afterwards")

    def _ask_and_notify(self, trip: RoundTrip, kinds: Sequence[Settling], **options: Any) -> None:
        if self._listener is None:
            self._ask(trip, kinds, **options)
            return
        self._listener.on_settling()
        self._ask(trip, kinds, **options)
        self._listener.on_settled()
        for kind in kinds:
            _notify(self._listener, kind)


def _notify(listener: SettlementListener, kind: Settling) -> None:
    for settlement in kind.settlements:
        if settlement.delivery_id in kind.ended:
            listener.on_recorded(settlement, kind.epochs[settlement.line_id])
    for one in kind.withheld:
        if one.line_id in kind.owned:
            listener.on_withheld(one)
