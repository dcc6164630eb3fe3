"""Somebody who asks for prices: SYNC calls, evenly over time, each answered by the price list itself."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import requests

from broker_project.stack.demo.cast import OFFICE, PRICE, price_of
from broker_project.stack.demo.events import Event, event, text_of
from broker_project.stack.demo.publishers import EVENTS, REPORTS, SECONDS, TIMEOUT, wait_until
from broker_project.stack.demo.records import Answered, line

QUESTIONS = 120


@dataclass(slots=True)
class Asking:
    """One thread that calls and writes down each answer."""

    address: str
    token: str
    log: Path
    events: Sequence[Event]

    done: int = 0
    problem: str = ""
    session: requests.Session = field(default_factory=requests.Session)

    def run(self) -> None:
        """Ask everything."""
        self.session.headers.update({"Authorization": f"Bearer {self.token}", "Content-Type": "application/json"})
        began = time.monotonic()
        try:
            with self.log.open("a", buffering=1) as log:
                for each in self.events:
                    wait_until(began + SECONDS * self.done / len(self.events))
                    log.write(line(self._ask(each)))
                    self.done += 1
        except requests.RequestException as problem:
            self.problem = str(problem)

    def _ask(self, each: Event) -> Answered:
        began = time.monotonic()
        answer = self.session.post(self.address, text_of(each.body), timeout=TIMEOUT)
        seconds = time.monotonic() - began
        is_right = answer.ok and answer.json() == {"cents": price_of(each.number)}
        return Answered(each.number, seconds, answer.status_code, is_right)


def asking(web: str, tokens: dict[str, str], suffix: str, folder: Path) -> Asking:
    """Return who asks for prices."""
    first = EVENTS + REPORTS + 1
    events = [event(number, PRICE) for number in range(first, first + QUESTIONS)]
    return Asking(f"{web}/api/v1/events/{PRICE}{suffix}", tokens[OFFICE], folder / "asked.jsonl", events)
