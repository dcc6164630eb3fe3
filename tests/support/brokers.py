"""Provide a running broker, and another one after a failed case, which may have left anything behind."""

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import psycopg
import pytest

from tests.support.faults.audit import Audit, Made, NotSummarized, Since
from tests.support.faults.verdicts import FAILED, Verdict
from tests.support.real_broker import Broker, running_broker


@dataclass(slots=True)
class BrokerHistory:
    """What has happened to one broker, and the cases whose part of it is to be audited."""

    since: Since
    owed: list[tuple[Verdict, Made]] = field(default_factory=list)

    def audit(self) -> None:
        """Let the broker's own audit judge every case, all in one run: it has to find no fault."""
        failure = ""
        try:
            if self.owed:
                self.since.summarize()
        except NotSummarized as problem:
            failure = f"no audit: {problem}"
        for verdict, made in self.owed:
            verdict.take(Audit(failure=failure) if failure else self._found(made))

    def _found(self, made: Made) -> Audit:
        try:
            return self.since.found(made)
        except psycopg.Error as problem:
            return Audit(failure=f"no audit: {problem}")


class Brokers:
    """The running broker with its history; started when first needed."""

    def __init__(self, folder: Callable[[], Path]) -> None:
        self._folder = folder
        self._until_the_end = contextlib.ExitStack()
        self._running: tuple[Broker, BrokerHistory] | None = None

    def broker(self) -> Broker:
        """Return the running broker."""
        return self._there()[0]

    def history(self) -> BrokerHistory:
        """Return the history of the running broker."""
        return self._there()[1]

    def forsake(self) -> None:
        """Audit the running broker's cases and stop it; the next call of `broker` starts another."""
        running, self._running = self._running, None
        with self._until_the_end.pop_all():
            if running:
                running[1].audit()

    def _there(self) -> tuple[Broker, BrokerHistory]:
        if not self._running:
            broker = self._until_the_end.enter_context(running_broker(self._folder()))
            self._running = broker, BrokerHistory(Since(broker))
        return self._running


def replace_broken_broker(brokers: Brokers, session: pytest.Session) -> None:
    """Stop the running broker if a case has failed on it."""
    if session.stash.get(FAILED, False):
        brokers.forsake()
        session.stash[FAILED] = False
