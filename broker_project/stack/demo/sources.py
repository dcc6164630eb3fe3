"""Whatever publishes in the demo, each in a thread of its own."""

import threading
from collections.abc import Sequence
from typing import Protocol

from broker_project.stack.demo.events import Event


class Source(Protocol):
    """Something that publishes, as seen from outside."""

    @property
    def events(self) -> Sequence[Event]:
        """All that it has to publish."""

    @property
    def done(self) -> int:
        """How many of them it has published."""

    @property
    def problem(self) -> str:
        """Why it stopped before the end; empty: it did not."""

    def run(self) -> None:
        """Publish everything."""


def start(sources: Sequence[Source]) -> list[threading.Thread]:
    """Let all of them publish, side by side."""
    started = [threading.Thread(target=source.run, daemon=True) for source in sources]
    for thread in started:
        thread.start()
    return started
