"""Those who ask, in one process: each by turns the endpoint itself and the broker, with the same kind of question."""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection as Control
from typing import Final

from benchmarks.connection import Connection, Refused, body_of

ANSWERED: Final = 204
CONNECTIONS: Final = 8


@dataclass(frozen=True, slots=True)
class Questions:
    """Where to ask, and how often."""

    web: str
    token: str
    event_type: str
    endpoint: str
    """The endpoint's address without its path."""
    path: str
    per_second: float
    seconds: float
    warm_seconds: float
    """Not counted."""


@dataclass(slots=True)
class Asked:
    """How long the answers took, in seconds, and how many there were in a second as fast as they came."""

    direct: list[float] = field(default_factory=list)
    through: list[float] = field(default_factory=list)
    direct_rate: float = 0.0
    through_rate: float = 0.0
    problems: list[str] = field(default_factory=list)


class Asker:
    """One connection to the endpoint and one to the broker, and one question after the other."""

    def __init__(self, number: int, questions: Questions) -> None:
        self._number = number
        self._questions = questions
        self._count = 0
        self._endpoint = Connection(questions.endpoint, questions.token)
        self._broker = Connection(questions.web, questions.token)
        self._path = f"/api/v1/events/{questions.event_type}".encode()

    def ask_the_endpoint(self) -> float:
        """Ask, and return how long that took."""
        return self._ask(self._endpoint, self._questions.path.encode())

    def ask_the_broker(self) -> float:
        """Ask, and return how long that took."""
        return self._ask(self._broker, self._path)

    def by_the_clock(self, asked: Asked) -> None:
        """Ask both, at its moment of the timetable, until the time is up."""
        step = CONNECTIONS / self._questions.per_second
        due = time.monotonic() + self._number * step / CONNECTIONS
        counts_from = due + self._questions.warm_seconds
        while due < counts_from + self._questions.seconds:
            time.sleep(max(0.0, due - time.monotonic()))
            direct, through = self.ask_the_endpoint(), self.ask_the_broker()
            if due >= counts_from:
                asked.direct.append(direct)
                asked.through.append(through)
            due += step

    def _ask(self, connection: Connection, path: bytes) -> float:
        self._count += 1
        body = body_of(self._number, self._count, time.monotonic_ns())
        began = time.monotonic()
        connection.post(path, body, expected=ANSWERED)
        return time.monotonic() - began


def ask(control: Control, questions: Questions) -> None:
    """Be those who ask: the whole life of a process."""
    askers = [Asker(number, questions) for number in range(CONNECTIONS)]
    asked = Asked()
    _side_by_side(askers, lambda asker: asker.by_the_clock(asked), asked)
    asked.through_rate = _rate(askers, Asker.ask_the_broker, questions.seconds, asked)
    asked.direct_rate = _rate(askers, Asker.ask_the_endpoint, questions.seconds / 4, asked)
    control.send(asked)


def _rate(askers: Sequence[Asker], ask_one: Callable[[Asker], object], seconds: float, asked: Asked) -> float:
    """Return the answers a second where each asks again as soon as it has been answered."""
    counts: list[int] = []
    until = time.monotonic() + seconds

    def on_and_on(asker: Asker) -> None:
        count = 0
        while time.monotonic() < until:
            ask_one(asker)
            count += 1
        counts.append(count)

    _side_by_side(askers, on_and_on, asked)
    return sum(counts) / seconds


def _side_by_side(askers: Sequence[Asker], act: Callable[[Asker], None], asked: Asked) -> None:
    def try_to(asker: Asker) -> None:
        try:
            act(asker)
        except (Refused, OSError) as problem:
            asked.problems.append(str(problem))

    threads = [threading.Thread(target=try_to, args=[asker]) for asker in askers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
