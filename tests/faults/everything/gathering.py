"""All kinds of work around one broker, begun and ended together."""

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import psycopg
import requests

from tests.faults.auditing import Made, Since
from tests.faults.calling import called
from tests.faults.everything.calls import Calls
from tests.faults.everything.letters import letters_to
from tests.faults.everything.mailboxes import Mailboxes
from tests.faults.everything.others import Apart, Scripted, Several
from tests.faults.everything.queues import Queue
from tests.faults.everything.replays import replays_at
from tests.faults.everything.replies import replies_to
from tests.faults.everything.strict import Strict
from tests.faults.everything.works import ANSWER_SECONDS, EVERY, Faults, Work
from tests.faults.load import loaded
from tests.faults.mailbox_loading import mailbox_loaded
from tests.faults.queue_load import queue_loaded
from tests.faults.settling import settling_seconds
from tests.real_broker import Broker
from tests.receiver import Receiver

KINDS = ("topic", "concurrent", "retry-line", "scripts", "queue", "callbacks", "replays", "mailbox", "sync", "volatile")
LOOK_EVERY = 0.1
KEPT_REQUESTS = 100
"""Of the receiver's own log: endpoints write down what they need."""


@dataclass(slots=True)
class Everything:
    """What is under way, by kind, and what has been broken so far."""

    broker: Broker
    receiver: Receiver
    faults: Faults
    works: dict[str, Work] = field(default_factory=dict)
    made: dict[str, Made] = field(default_factory=dict)
    """The subscribers of each kind."""
    begun: float = field(default_factory=time.monotonic)

    def start(self) -> None:
        """Let everybody go on from now."""
        for work in self.works.values():
            work.start()

    def done(self) -> dict[str, int]:
        """Return how much each has done so far."""
        return {kind: work.done() for kind, work in self.works.items()}

    def go_on(self, more: int, seconds: float) -> list[str]:
        """Wait until each has done so much more; return the kinds that have not in this time."""
        before, until = self.done(), time.monotonic() + seconds
        while (late := self._late(before, more)) and time.monotonic() < until:
            time.sleep(LOOK_EVERY)
        return late

    def stop(self, seconds: float) -> list[str]:
        """Begin nothing more, and wait until all is through; return the kinds that are not in this time."""
        for work in self.works.values():
            work.stop()
        until = time.monotonic() + seconds
        left = {*self.works}
        while left and time.monotonic() < until:
            left = {kind for kind in left if not self._is_through(kind)}
            time.sleep(LOOK_EVERY)
        return [kind for kind in self.works if kind in left]

    def read_settling(self) -> float:
        """Let all faults know, before anything is judged, how long answers have waited to be stored; return that."""
        seconds = settling_seconds(self.broker, self.begun, self.faults.all)
        self.faults.all[:] = [replace(fault, settling=seconds) for fault in self.faults.all]
        return seconds

    def forget_requests(self) -> None:
        """Keep the receiver's log short."""
        log = self.receiver.log
        self.receiver.soon(lambda: log.__delitem__(slice(0, -KEPT_REQUESTS)))

    def _late(self, before: dict[str, int], more: int) -> list[str]:
        return [kind for kind, done in self.done().items() if done < before[kind] + more]

    def _is_through(self, kind: str) -> bool:
        try:
            return self.works[kind].is_through()
        except (requests.RequestException, psycopg.Error):
            return False


@contextmanager
def everything(broker: Broker, receiver: Receiver, folder: Path) -> Iterator[Everything]:
    """Give all kinds of work; leave none of it for whoever comes next."""
    since, everybody = Since(broker), Everything(broker, receiver, Faults())
    with ExitStack() as until_the_end:
        for work in _made(everybody, folder, until_the_end):
            everybody.works[work.kind] = work
            for endpoint in work.endpoints():
                endpoint.answer_seconds = ANSWER_SECONDS
            everybody.made[work.kind] = Made(
                max((one.last for one in everybody.made.values()), default=since.before), since.newest()
            )
        yield everybody


def _made(everybody: Everything, folder: Path, until_the_end: ExitStack) -> Iterator[Work]:
    """Yield one kind of work after the other, each with subscribers of its own."""
    broker, receiver, faults = everybody.broker, everybody.receiver, everybody.faults
    enter = until_the_end.enter_context
    load = enter(loaded(broker, receiver))
    load.faults = faults.all
    yield Strict(load)
    yield Several.of(load)
    yield Apart.of(load)
    yield Scripted.of(load)
    jobs = enter(queue_loaded(broker, receiver, every=EVERY))
    jobs.faults = faults.all
    yield Queue(jobs)
    yield enter(replies_to(broker, receiver, faults.all))
    yield enter(replays_at(broker, receiver, faults.all))
    yield Mailboxes(enter(mailbox_loaded(broker, receiver, folder, every=EVERY)))
    calling = enter(called(broker, receiver, every=EVERY))
    calling.cut = faults.of_web
    yield Calls(calling)
    yield enter(letters_to(broker, receiver))
