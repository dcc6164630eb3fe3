"""What the worker and the Spark application tell each other: the job as JSON, and reports as lines of JSON."""

import datetime as dt
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final, Self, TextIO

HOUR: Final = dt.timedelta(hours=1)
HOUR_LAG: Final = dt.timedelta(minutes=2)
"""An hour is closed this long after its end: what ended in it has been settled by then."""
DAY: Final = dt.timedelta(days=1)

REPORTS: Final = "BROKER_REPORT_FD"
"""The environment variable with the file descriptor for reports; unset: reports are discarded."""


@dataclass(frozen=True, slots=True, order=True)
class Window:
    """A closed range of time: an hour of a day that may still change, or a whole sealed day."""

    start: dt.datetime
    end: dt.datetime
    """UTC both; the end is not part of it."""

    @classmethod
    def from_json(cls, window: Mapping[str, str]) -> Self:
        """Return the window of a JSON object with `start` and `end`."""
        return cls(dt.datetime.fromisoformat(window["start"]), dt.datetime.fromisoformat(window["end"]))

    def as_json(self) -> dict[str, str]:
        """Return it as a JSON object that `from_json` reads."""
        return {"start": self.start.isoformat(), "end": self.end.isoformat()}

    @property
    def day(self) -> dt.date:
        """The day in whose folder it is kept."""
        return self.start.date()

    @property
    def is_day(self) -> bool:
        """Whether it is a whole day, which replaces the hours summarized before."""
        return self.end - self.start == DAY

    def __str__(self) -> str:
        whole_hour = self.end - self.start == HOUR
        until = "" if whole_hour else f" to {self.end:%H:%M:%S}"
        return f"{self.day}" if self.is_day else f"{self.start:%Y-%m-%d %H:%M}{until}"


def midnight(day: dt.date) -> dt.datetime:
    """Return the instant at which a day begins."""
    return dt.datetime.combine(day, dt.time(), dt.UTC)


def whole(day: dt.date) -> Window:
    """Return the window of a whole day."""
    return Window(midnight(day), midnight(day + DAY))


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The broker's words, from its enums: a status or kind that is added there shows up in the summaries by itself."""

    statuses: tuple[str, ...]
    unfinished: tuple[str, ...]
    delivered: str
    neutral: tuple[str, ...]
    """Final statuses that say nothing about the endpoint: neither failures nor part of a rate."""
    redundant: str
    """The neutral status of a delivery whose message another endpoint of its group took."""
    kinds: tuple[str, ...]
    """Kinds of events, then the kind of mailbox deliveries, then that of replies to callbacks."""
    pulled_kind: str
    """The kind of deliveries that are fetched from a mailbox."""
    pull_mode: str
    """The delivery mode of subscriptions with a mailbox."""
    sync_kind: str
    """The kind of synchronous calls, which are attempted once."""
    outcomes: tuple[str, ...]
    """Of messages."""
    failures: tuple[tuple[str, str], ...]
    """Regular expressions that an attempt's error text begins with, and the class of each; the first match counts."""
    unknown_failure: str
    holding: tuple[tuple[str, tuple[int, ...]], ...]
    """For each kind, the answers that hold the line; 0 stands for no answer."""
    ending: tuple[tuple[str, tuple[int, ...]], ...]
    """For each kind, the answers after which a delivery is never sent again."""
    means_hold: str
    means_deferred: str
    """The line goes on, the delivery is retried in it."""
    means_retry_lane: str
    means_end: str
    """Recorded with attempts whose retry policy decided; `holding` and `ending` apply where nothing is recorded."""

    @property
    def callback_reply_kind(self) -> str:
        """The kind of replies to callbacks."""
        return self.kinds[-1]

    @property
    def final(self) -> tuple[str, ...]:
        """The statuses in which a delivery ends."""
        return tuple(status for status in self.statuses if status not in self.unfinished)


@dataclass(frozen=True, slots=True)
class Job:
    """One run: which windows are summarized, where the lake is, and how Spark is to run."""

    run: int
    windows: tuple[Window, ...]
    lake: str
    """A path or the URL of an object store."""
    master: str
    memory: str
    """Of the driver, as Spark writes it: 1g."""
    vocabulary: Vocabulary
    objective: float
    """The share of deliveries that should succeed, between 0 and 1."""
    slice_rows: int
    """About how many rows one reading transaction copies; long transactions hold back vacuum."""

    def as_json(self) -> str:
        """Return it as a text that `from_json` reads."""
        return json.dumps(asdict(self), default=dt.datetime.isoformat)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Return the job that a text describes.

        Raises:
            ValueError, KeyError, TypeError: the text is not a job.
        """
        document: dict[str, Any] = json.loads(text)
        windows = tuple(map(Window.from_json, document["windows"]))
        words = {name: _frozen(value) for name, value in document["vocabulary"].items()}
        return cls(**{**document, "windows": windows, "vocabulary": Vocabulary(**words)})


def _frozen(value: Any) -> Any:
    return tuple(map(_frozen, value)) if isinstance(value, list) else value


def is_local(master: str) -> bool:
    """Return whether Spark runs in one process on this machine."""
    return re.fullmatch(r"local(\[.*\])?", master) is not None


@dataclass(frozen=True, slots=True)
class Check:
    """A condition that was checked, and what was found."""

    name: str
    passed: bool
    found: str


@dataclass(slots=True)
class Progress:
    """What is known of a window so far; reported when it ends."""

    inputs: dict[str, int] = field(default_factory=dict)
    """What the partitions held when they were read: `{leaf: rows}`."""
    rows_read: dict[str, int] = field(default_factory=dict)
    """By the name of a bronze table."""
    rows_written: dict[str, int] = field(default_factory=dict)
    """By the path of a silver or gold table."""
    checks: tuple[Check, ...] = ()
    lake_bytes: int = 0


class Reports:
    """Reports one run: JSON lines for the worker, printed text for people."""

    def __init__(self, stream: TextIO, printed: TextIO) -> None:
        self.windows: Sequence[Window] = ()
        """Those of which steps are reported, in order."""
        self._stream = stream
        self._printed = printed

    def progress(self, text: str, **more: Any) -> None:
        """Report how far it is."""
        print(f"{dt.datetime.now(dt.UTC):%H:%M:%S} {text}", file=self._printed, flush=True)
        self._report(progress=text, **more)

    def step(self, window: Window, step: str, before: str = "") -> None:
        """Report the next step of a window, such as `reading`, after what came of the step `before`."""
        number, total = self.windows.index(window) + 1, len(self.windows)
        text = f"{window}: {before}{step} (window {number} of {total})"
        self.progress(text, position={"number": number, "total": total, "step": step})

    def window(self, window: Window, progress: Progress, seconds: float, error: str = "") -> None:
        """Report the end of a window: with an `error`, its summaries are unchanged."""
        state = "FAILED" if error else "PASSED"
        self._report(window=window.as_json(), state=state, seconds=round(seconds, 3), error=error, **asdict(progress))
        self.progress(f"{window}: FAILED: {error}" if error else f"{window}: summarized in {seconds:.1f} s")

    def ended(self, error: str) -> None:
        """Report that the run ended before its windows were done."""
        print(f"summaries: {error}", file=self._printed, flush=True)
        self._report(error=error)

    def _report(self, **report: Any) -> None:
        print(json.dumps(report), file=self._stream, flush=True)
