"""Hand out running brokers: another one after a case has failed, which may have left anything behind."""

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
    """A broker that runs, with its history; made when somebody asks for it."""

    def __init__(self, folder: Callable[[], Path]) -> None:
        self._folder = folder
        self._until_the_end = contextlib.ExitStack()
        self._running: tuple[Broker, BrokerHistory] | None = None

    def broker(self) -> Broker:
        """Return the one that runs."""
        return self._there()[0]

    def history(self) -> BrokerHistory:
        """Return what has happened to the one that runs."""
        return self._there()[1]

    def forsake(self) -> None:
        """End the one that runs, once all that is to be audited of it has been; whoever asks then gets another."""
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
    """Leave the broker that runs where a case has failed at it."""
    if session.stash.get(FAILED, False):
        brokers.forsake()
        session.stash[FAILED] = False
