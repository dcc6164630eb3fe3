"""Follow the receivers' logs while they grow, and tell when everything is through."""

import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from broker_project.stack.demo.arrivals import is_final
from broker_project.stack.demo.cast import SUBSCRIBERS, Sample
from broker_project.stack.demo.publishers import Publisher

LOOK_EVERY = 0.25
GRACE_SECONDS = 2.0
"""How long to go on looking for duplicates after the last delivery."""

STANDSTILL_SECONDS = 90.0
"""What has not come after so long without any progress counts as lost; no pause of a line is longer."""


@dataclass(slots=True)
class Following:
    """One receiver's log, read as far as it goes."""

    sample: Sample
    path: Path
    expected: int
    ended: set[int] = field(default_factory=set)
    offset: int = 0

    def look(self) -> None:
        """Read what is new."""
        if not self.path.exists():
            return
        with self.path.open("rb") as log:
            log.seek(self.offset)
            new = log.read()
        complete = new[: new.rfind(b"\n") + 1]
        self.offset += len(complete)
        for text in complete.splitlines():
            request = json.loads(text)
            if is_final(request["answer"]):
                self.ended.add(request["number"])


@dataclass(frozen=True, slots=True)
class Progress:
    """How far the demo is."""

    published: int
    ended: dict[str, int]
    """Deliveries that have their final answer, by subscriber."""


def followings(publishers: Sequence[Publisher], folder: Path) -> list[Following]:
    """Return the logs to be followed, with how much is to come in each."""
    events = [event for publisher in publishers for event in publisher.events]
    return [
        Following(sample, log_of(sample, folder), sum(sample.wants(event.type, event.region) for event in events))
        for sample in SUBSCRIBERS
    ]


def log_of(sample: Sample, folder: Path) -> Path:
    """Return where a receiver writes down its requests."""
    return folder / f"received-{sample.name}.jsonl"


def watch(publishers: Sequence[Publisher], logs: Sequence[Following]) -> Iterator[Progress]:
    """Give the progress now and then, until everything is through or nothing goes on."""
    last, moved_at = None, time.monotonic()
    while time.monotonic() - moved_at < (GRACE_SECONDS if _is_through(publishers, logs) else STANDSTILL_SECONDS):
        time.sleep(LOOK_EVERY)
        for log in logs:
            log.look()
        now = Progress(
            sum(publisher.done for publisher in publishers), {log.sample.name: len(log.ended) for log in logs}
        )
        if now != last:
            last, moved_at = now, time.monotonic()
        yield now
        if any(publisher.problem for publisher in publishers):
            return


def _is_through(publishers: Sequence[Publisher], logs: Sequence[Following]) -> bool:
    everything_published = all(publisher.done == len(publisher.events) for publisher in publishers)
    return everything_published and all(len(log.ended) >= log.expected for log in logs)
