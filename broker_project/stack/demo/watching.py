"""Follow the receivers' logs while they grow, and tell when everything is through."""

import json
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from broker_project.stack.demo.arrivals import is_final
from broker_project.stack.demo.cast import ARCHIVE, READERS, REPORT, SUBSCRIBERS, WORKERS, Sample, wants_reply
from broker_project.stack.demo.events import Event
from broker_project.stack.demo.replies import NAME as REPLIES
from broker_project.stack.demo.sources import Source

LOOK_EVERY = 0.25
GRACE_SECONDS = 2.0
"""How long to go on looking for duplicates after the last delivery."""

STANDSTILL_SECONDS = 90.0
"""What has not come after so long without any progress counts as lost; no pause of a line is longer."""


@dataclass(slots=True)
class Following:
    """The logs of those who share what they get, read as far as they go: one receiver's, or several workers'."""

    name: str
    about: str
    paths: Sequence[Path]
    expected: int
    ended: set[int] = field(default_factory=set)
    _offsets: Counter[Path] = field(default_factory=Counter)

    def look(self) -> None:
        """Read what is new."""
        for path in filter(Path.exists, self.paths):
            with path.open("rb") as log:
                log.seek(self._offsets[path])
                new = log.read()
            complete = new[: new.rfind(b"\n") + 1]
            self._offsets[path] += len(complete)
            for text in complete.splitlines():
                request = json.loads(text)
                if is_final(request["answer"]):
                    self.ended.add(request["number"])


@dataclass(frozen=True, slots=True)
class Progress:
    """How far the demo is."""

    published: int
    ended: dict[str, int]
    """Deliveries that have their final answer, by who is followed."""


def followings(sources: Sequence[Source], folder: Path) -> list[Following]:
    """Return the logs to be followed, with how much is to come in each."""
    events = [event for source in sources for event in source.events]
    of_topics = [
        Following(
            sample.name,
            sample.behaviour,
            [log_of(sample.name, folder)],
            _wanted(sample, events),
        )
        for sample in SUBSCRIBERS
    ]
    readers = [log_of(name, folder) for name in READERS]
    reports = [event for event in events if event.type == REPORT]
    workers = [log_of(sample.name, folder) for sample in WORKERS]
    wanted = sum(wants_reply(report.number) for report in reports)
    return [
        *of_topics,
        Following(ARCHIVE.name, "three readers fetch", readers, _wanted(ARCHIVE, events)),
        Following("printers", "share the jobs", workers, len(reports)),
        Following("replies", "to some of the jobs", [log_of(REPLIES, folder)], wanted),
    ]


def _wanted(sample: Sample, events: Iterable[Event]) -> int:
    return sum(sample.wants(event.type, event.region) for event in events)


def log_of(name: str, folder: Path) -> Path:
    """Return where a receiver writes down its requests."""
    return folder / f"received-{name}.jsonl"


def watch(sources: Sequence[Source], logs: Sequence[Following]) -> Iterator[Progress]:
    """Give the progress now and then, until everything is through or nothing goes on."""
    last, moved_at = None, time.monotonic()
    while time.monotonic() - moved_at < (GRACE_SECONDS if _is_through(sources, logs) else STANDSTILL_SECONDS):
        time.sleep(LOOK_EVERY)
        for log in logs:
            log.look()
        now = Progress(sum(source.done for source in sources), {log.name: len(log.ended) for log in logs})
        if now != last:
            last, moved_at = now, time.monotonic()
        yield now
        if any(source.problem for source in sources):
            return


def _is_through(sources: Sequence[Source], logs: Sequence[Following]) -> bool:
    everything_published = all(source.done == len(source.events) for source in sources)
    return everything_published and all(len(log.ended) >= log.expected for log in logs)
