"""A history: what a seed lets happen to two workers, their database and their endpoints."""

import itertools
import math
import re
import traceback
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from functools import partial
from random import Random
from typing import Final, NamedTuple

import psycopg
from django.db import connections, transaction

from broker_project.core.db import rows
from delivery.dispatch.claim import end_leases_of
from delivery.limits import LEASE_SECONDS
from delivery.maintenance.clock import set_back_times
from delivery.operations import cancel_deliveries_of
from delivery.pause import pause, resume
from subscriptions.models import Status, Subscription
from tests.histories import promises
from tests.histories.world import AHEAD, BACK, DUMP, END_PAUSES, ENDED, LAPSE, Killed, Worker, World
from tests.support.broker import lines_with_due_work, publish_bodies
from tests.support.stepped_worker import HUNG, Request

ACTIONS: Final = {
    "publish": 8.0, "take": 7.0, "go": 7.0, "answer": 16.0, "end_pauses": 3.0, "arm": 6.0, "freeze": 1.5, "lapse": 1.5,
    "kill": 1.5, "lock": 1.0, "arrive": 1.0, "cancel": 0.5, "switch": 1.5, "edit": 0.5, "dawdle": 1.0, "jump": 1.0,
    "save": 0.7, "restore": 0.7,
}  # fmt: skip
"""How often each happens, before a seed prefers some of them."""
ALWAYS: Final = {"publish", "take", "go", "answer"}
RESULTS: Final = (302, 404, 500, 503, "refused", "lost", "cut", HUNG)
"""Answers other than 200; not connected, connected but never arrived, arrived and cut off, arrived and timed out."""
CUT, KILL, MEANWHILE = "its connection is cut", "it is killed", "meanwhile"
MAX_POINTS: Final = 14
"""How many points a worker passes at most before what is armed happens."""
FROZEN_SECONDS: Final = 25.0
"""Longer than a lease."""
DAWDLES: Final = 6
"""How often a worker goes a round while its requests take longer than a lease."""
ROUNDS_TO_HEAL: Final = 150

LINES: Final = "SELECT id FROM delivery_line ORDER BY id"
OPEN_SINCE: Final = "SELECT id, subscription_id, group_id, ordering_key FROM delivery_open WHERE id > %s ORDER BY id"
HELD_BY: Final = "SELECT id FROM delivery_line WHERE worker = %s AND lease_until IS NOT NULL"
FREEZE: Final = f"UPDATE delivery_line SET lease_until = {ENDED} WHERE worker = %s AND lease_until IS NOT NULL"
END_LEASES: Final = f"""
UPDATE delivery_line l SET lease_until = {ENDED}
  FROM unnest(%s::bigint[], %s::bigint[]) AS o (line_id, epoch)
 WHERE l.id = o.line_id AND l.epoch = o.epoch AND l.lease_until IS NOT NULL
"""
MARKED: Final = "SELECT DISTINCT subscription_id FROM delivery_open WHERE status = 'IN_FLIGHT' ORDER BY 1"
OPEN: Final = "SELECT id FROM delivery_open"
UNDONE: Final = "SELECT FROM delivery_open LIMIT 1"
LOCK: Final = "SELECT FROM delivery_line WHERE id = %s FOR NO KEY UPDATE"


class Published(NamedTuple):
    """A delivery that was accepted."""

    at: int
    subscription_id: int
    group_id: int | None
    ordering_key: str | None


class Saved(NamedTuple):
    """What was so when the database was dumped."""

    at: int
    published: dict[int, Published]
    off: list[list[float]]
    cancelled: set[int]


class History:
    """Chooses by its seed alone, and writes down what happens; `run_history` runs one."""

    def __init__(self, world: World, seed: int) -> None:
        world.reset(seed)
        self.world = world
        self.random = Random(seed)  # noqa: S311 - weather
        self.story: list[str] = []
        self.now = 0
        """Counts what happens."""
        self.published: dict[int, Published] = {}
        self.requests: list[Request] = []
        self.saved: Saved | None = None
        """The dump that may be restored."""
        self.lost: dict[int, Published] = {}
        """Deliveries that a restored database lacks."""
        self.forgotten: list[Request] = []
        """Requests of which a restored database knows nothing: they left after its dump, or from an earlier process."""
        self.doubtful: set[int] = set()
        """Deliveries that were unfinished in a restored database."""
        self.outdated: set[Worker] = set()
        """Workers of before a restore, which end as soon as they connect again."""
        self.faults: defaultdict[int, list[int]] = defaultdict(list)
        """By line: when something broke that may cost it a repetition."""
        self.doubts: list[tuple[Worker, float]] = []
        """Until when, on the clock of each worker, leases last that were given before the database's clock jumped."""
        self.off: list[list[float]] = []
        """Subscription, since when and until when nothing was sent to it."""
        self.cancelled: set[int] = set()
        self.strays: list[Request] = []
        """Of workers that are gone: they may still arrive."""
        self.marked: dict[int, list[object]] | None = None
        """What is in flight, with its line's worker and epoch; None: something may have changed since it was read."""
        self.armed: dict[str, tuple[str, int]] = {}
        """By worker: what happens to it, and how many points later."""
        self.stack: list[Worker | None] = []
        """Whose code runs, innermost last; None: nobody's."""
        world.monotonic = lambda: self.stack[-1].monotonic() if self.stack and self.stack[-1] else 0.0
        self.lines = [line_id for (line_id,) in rows(LINES)]
        self.subscriptions = [*world.owners]
        self.names = itertools.count(1)
        self.workers = [self.new_worker(), self.new_worker()]
        often = {name: 1.0 if name in ALWAYS else self.random.choice((0.0, 0.5, 1.0, 3.0)) for name in ACTIONS}
        self.weights = {name: weight * often[name] for name, weight in ACTIONS.items()}
        bad = self.random.choice((0.2, 1.0, 3.0))
        self.results: dict[int | str, float] = {200: 6.0, **{one: bad * self.random.random() for one in RESULTS}}

    def live(self) -> None:
        """Let things happen, let everything heal, and check what was promised."""
        for _ in range(self.random.randint(15, 60)):
            self.act()
        self.heal()
        promises.check(self)

    def say(self, text: str) -> None:
        self.now += 1
        self.story.append(f"{self.now:4} {'    ' * len(self.stack)}{text}")

    # --- what can happen -------------------------------------------------------------------------------

    def act(self) -> None:
        (name,) = self.random.choices([*self.weights], [*self.weights.values()])
        act: Callable[[], None] = getattr(self, name)
        self.marked = None
        act()

    def publish(self) -> None:
        kind, count = self.random.choice(self.world.types), self.random.choice((1, 1, 2, 3))
        publish_bodies(kind, *[b"%d" % number for number in range(count)])
        found = rows(OPEN_SINCE, [max(self.published, default=0)])
        new = {one: Published(self.now + 1, *columns) for one, *columns in found}
        promises.check_names(self, new)
        self.published |= new
        self.say(f"{count} of {kind.name} are published: deliveries {[one for one, *_ in found]}")

    def take(self) -> None:
        if worker := self.any_worker():
            line_ids = lines_with_due_work() if self.random.random() < 0.7 else self.random.sample(self.lines, 4)
            self.say(f"{worker.name} is woken for lines {line_ids}")
            self.step(worker, partial(worker.take, line_ids))

    def go(self) -> None:
        if worker := self.any_worker():
            self.pass_time(worker, self.random.choice((0.02, 0.02, 0.3, 0.3, 1.2)))

    def dawdle(self) -> None:
        """Let the endpoints of a worker take longer than a lease, which it renews meanwhile."""
        if worker := self.any_worker(lambda one: bool(one.wire.in_flight)):
            for _ in range(DAWDLES):
                if worker in self.workers:
                    self.pass_time(worker, FROZEN_SECONDS / DAWDLES)

    def answer(self) -> None:
        if worker := self.any_worker(lambda one: bool(one.wire.in_flight)):
            most = min(len(worker.wire.in_flight), self.random.choice((1, 1, 2, 4)))
            chosen = self.random.sample(worker.wire.in_flight, most)
            results = self.random.choices([*self.results], [*self.results.values()], k=most)
            self.answer_with(worker, dict(zip(chosen, results, strict=True)))

    def end_pauses(self) -> None:
        self.say("all pauses end")
        rows(END_PAUSES)

    def arm(self) -> None:
        """Choose what happens to a worker between two of its next statements, or after a request."""
        what = self.random.choice((CUT, CUT, KILL, MEANWHILE, MEANWHILE))
        self.armed[self.random.choice(self.workers).name] = what, self.random.randrange(MAX_POINTS)

    def freeze(self) -> None:
        """Freeze a worker for longer than its leases, perhaps between two of its statements."""
        worker = self.random.choice(self.workers)
        self.say(f"{worker.name} freezes for {FROZEN_SECONDS} s")
        self.note_fault(worker)
        worker.clock += FROZEN_SECONDS
        rows(FREEZE, [worker.name])

    def lapse(self) -> None:
        """Let leases run out that no living worker knows of, nor is about to hear of."""
        held = [(line.id, line.claim.epoch) for worker in self.workers for line in worker.lines]
        self.say("the leases of workers that are gone run out")
        busy = [worker.name for worker in self.stack if worker]
        rows(LAPSE, [[line_id for line_id, _ in held], [epoch for _, epoch in held], busy])

    def jump(self) -> None:
        """Let the database's clock jump ahead, beyond all leases, or set it back."""
        if self.random.random() < 0.5:
            self.say("the database's clock is set back")
            rows(BACK)
        elif not self.is_ahead():
            self.say("the database's clock jumps ahead")
            rows(AHEAD)
            self.doubts = [(worker, worker.clock + LEASE_SECONDS) for worker in self.workers]

    def kill(self) -> None:
        if worker := self.any_worker():
            self.note_fault(worker)
            self.bury(worker)

    def lock(self) -> None:
        """Let somebody have a line locked while a worker goes a round."""
        worker = self.any_worker(lambda one: bool(one.lines))
        if worker and not self.is_locked:
            line = self.random.choice(worker.lines)
            with transaction.atomic():
                seconds = self.random.choice((0.3, FROZEN_SECONDS))
                self.say(f"line {line.id} is locked for a round")
                rows(LOCK, [line.id])
                if seconds == FROZEN_SECONDS:  # its lease, and those of others, cannot be renewed any more
                    self.note_fault(worker)
                self.pass_time(worker, seconds)

    def arrive(self) -> None:
        if self.strays:
            self.arrives(self.strays.pop(self.random.randrange(len(self.strays))))

    def cancel(self) -> None:
        one = self.random.choice(self.subscriptions)
        self.say(f"what waits for subscription {one} is cancelled")
        self.cancelled |= {key for key, published in self.published.items() if published.subscription_id == one}
        cancel_deliveries_of(one, reason="unwanted")

    def switch(self) -> None:
        """Pause a subscription, make it inactive, or let it go on."""
        one = self.random.choice(self.subscriptions)
        if any(span[0] == one and span[2] == math.inf for span in self.off):
            self.go_on(one)
            return
        self.off.append([one, self.now, math.inf])
        if self.random.random() < 0.5:
            self.say(f"subscription {one} is paused")
            pause([one], reason="moving house")
        else:
            self.say(f"subscription {one} becomes inactive")
            Subscription.objects.filter(pk=one).update(status=Status.INACTIVE)

    def save(self) -> None:
        """Dump the database."""
        if not self.is_locked:
            self.say("the database is dumped")
            self.world.save(DUMP)
            self.saved = Saved(self.now, {**self.published}, deepcopy(self.off), {*self.cancelled})

    def restore(self) -> None:
        """Restore the dump, while workers live."""
        if self.saved and not self.is_locked:
            self.say("the dump is restored")
            self.world.restore()
            self.forget_since(self.saved)
            self.outdated |= {worker for worker in self.workers if worker.database.has_connected}
            self.doubtful |= {one for (one,) in rows(OPEN)}
            for line_id in self.lines:
                self.faults[line_id].append(self.now)

    def edit(self, among: Sequence[int] = ()) -> None:
        one = self.random.choice(among or self.subscriptions)
        self.say(f"subscription {one} is edited")
        Subscription.objects.get(pk=one).save()

    # --- how it happens --------------------------------------------------------------------------------

    def is_ahead(self) -> bool:
        """Return whether the database's clock jumped ahead less than a lease ago."""
        return any(worker in self.workers and worker.clock < until for worker, until in self.doubts)

    @property
    def is_locked(self) -> bool:
        """Whether somebody has a transaction open, who would wait for himself."""
        return bool(self.world.database.in_atomic_block)

    def any_worker(self, may: Callable[[Worker], bool] = lambda _: True) -> Worker | None:
        """Return a worker that is in none of its own statements."""
        able = [worker for worker in self.workers if worker not in self.stack and may(worker)]
        return self.random.choice(able) if able else None

    def new_worker(self, name: str = "") -> Worker:
        return Worker(name or f"worker {next(self.names)}", self.world.made, self.point, self.on_request)

    def forget_since(self, saved: Saved) -> None:
        """Forget what has happened since the dump."""
        self.lost |= {one: of for one, of in self.published.items() if one not in saved.published}
        self.forgotten += [request for request in self.requests if request.left_at > saved.at]
        self.requests = [request for request in self.requests if request.left_at <= saved.at]
        ended = [[one, since, min(until, self.now)] for one, since, until in self.off if since > saved.at]
        self.off = [*deepcopy(saved.off), *ended]
        self.published, self.cancelled = {**saved.published}, {*saved.cancelled}

    def step(self, worker: Worker, do: Callable[[], object]) -> None:
        """Let a worker run, until it is done or killed; what it waits for no more may arrive yet."""
        try:
            with self.running(worker):
                do()
        except Killed:
            self.bury(worker)
        self.strays += [request for request in worker.wire.abandoned if not request.arrived_at]
        worker.wire.abandoned.clear()

    @contextmanager
    def running(self, worker: Worker | None) -> Iterator[None]:
        """Let the code of a worker run, with its connection and its clock."""
        outer = connections["default"]
        connections["default"] = worker.database if worker else self.world.database
        self.stack.append(worker)
        try:
            yield
        finally:
            self.stack.pop()
            connections["default"] = outer

    def pass_time(self, worker: Worker, seconds: float) -> None:
        self.say(f"{worker.name} goes a round, {seconds} s later")
        worker.clock += seconds
        over = [line for line in worker.lines if worker.clock >= line.renewed_at + LEASE_SECONDS]
        rows(END_LEASES, [[line.id for line in over], [line.claim.epoch for line in over]])
        self.step(worker, worker.go)

    def point(self, worker: Worker, in_transaction: bool | None) -> None:
        """Let happen what is armed for this point of a worker; `in_transaction` is None after a request."""
        if in_transaction is not None:
            self.marked = None
        what, left = self.armed.get(worker.name, ("", 0))
        if left:
            self.armed[worker.name] = what, left - 1
        elif what == MEANWHILE and not in_transaction and not self.is_locked:
            del self.armed[worker.name]
            self.say(f"between two statements of {worker.name}:")
            with self.running(None):
                for _ in range(self.random.randint(1, 5)):
                    self.act()
        elif what == KILL or (what == CUT and in_transaction is not None):
            del self.armed[worker.name]
            self.say(f"{worker.name}: {what}{', in a transaction' if in_transaction else ''}")
            with self.running(None):
                self.note_fault(worker)
                if what == CUT and not in_transaction and self.random.random() < 0.5:
                    self.edit([one for (one,) in rows(MARKED)])  # what was marked may not be sent any more
            raise Killed if what == KILL else psycopg.OperationalError("cut")

    def note_fault(self, worker: Worker) -> None:
        for (line_id,) in rows(HELD_BY, [worker.name]):
            self.faults[line_id].append(self.now)

    def on_request(self, worker: Worker, request: Request) -> None:
        flagged = ", flagged" if request.is_flagged else ""
        numbers = f"number {request.sequence}, attempt {request.attempt}{flagged}"
        self.say(f"{worker.name} sends {request.delivery_id} as {request.webhook_id} ({numbers})")
        request.left_at = self.now
        if worker in self.outdated:  # it has marked that before the database was restored
            self.forgotten.append(request)
            return
        with self.running(None):
            promises.check_request(self, worker, request)
        self.requests.append(request)

    def arrives(self, request: Request) -> None:
        self.say(f"{request.delivery_id} arrives at subscription {request.destination.subscription_id}")
        request.arrived_at = self.now

    def answer_with(self, worker: Worker, results: Mapping[Request, int | str]) -> None:
        for request, result in results.items():
            if result not in {"refused", "lost"}:
                self.arrives(request)
            request.result = result
        heard = {request.delivery_id: result for request, result in results.items()}
        self.say(f"{worker.name} hears {heard}")
        self.step(worker, partial(worker.answer_all, results))

    def bury(self, worker: Worker) -> None:
        """Replace a worker that is gone by one of its own name, or of another; its requests may arrive or not."""
        for request in worker.wire.in_flight:
            match self.random.choice(("arrived", "late", "never")):
                case "arrived":
                    self.arrives(request)
                case "late":
                    self.strays.append(request)
        self.armed.pop(worker.name, None)
        worker.database.close()
        new = self.new_worker(self.random.choice((worker.name, "")))
        self.say(f"{worker.name} is gone, {new.name} begins")
        self.workers[self.workers.index(worker)] = new
        if new.name == worker.name:
            end_leases_of(new.name)

    def go_on(self, one: float) -> None:
        self.say(f"subscription {one} goes on")
        resume([int(one)])
        Subscription.objects.filter(pk=int(one)).update(status=Status.ACTIVE)
        for span in self.off:
            span[2] = min(span[2], self.now) if span[0] == one else span[2]

    # --- how it ends -----------------------------------------------------------------------------------

    def heal(self) -> None:
        """Let nothing break any more, until everything is done and every line released."""
        self.say("everything heals")
        self.armed.clear()
        for one, _, until in [*self.off]:
            if until == math.inf:
                self.go_on(one)
        for _ in range(ROUNDS_TO_HEAL):
            set_back_times()
            self.lapse()
            self.end_pauses()
            for worker in self.workers:
                self.finish_with(worker)
            if due := lines_with_due_work():
                self.step(self.workers[0], partial(self.workers[0].take, due))
            elif not any(worker.lines for worker in self.workers) and not rows(UNDONE):
                return

    def finish_with(self, worker: Worker) -> None:
        """Let all requests be answered, and what waits for time go on."""
        while worker.wire.in_flight:
            self.answer_with(worker, dict.fromkeys(worker.wire.in_flight, 200))
        if worker.lines:
            self.pass_time(worker, 1.2)


def run_history(world: World, seed: int) -> str:
    """Run the history of a seed; return all that happened and what was broken, or nothing if every promise was kept."""
    history = History(world, seed)
    try:
        history.live()
    except Exception:  # noqa: BLE001 - reported with the story that led to it
        story = "\n".join([*history.story, traceback.format_exc()])
        return re.sub(
            r"\b\d{6}0{5}(\d{5})\b|(?<=_)\d{6}0{5}(\d{5})\b", lambda found: str(int(found[1] or found[2])), story
        )
    finally:
        for worker in history.workers:
            worker.database.close()
    return ""
