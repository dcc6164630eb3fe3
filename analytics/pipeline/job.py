"""What a run of the application is to do, and the broker's words for it: written by whoever starts it, as JSON."""

import datetime as dt
import json
from dataclasses import asdict, dataclass
from typing import Any, Final, Self

HOUR: Final = dt.timedelta(hours=1)
DAY: Final = dt.timedelta(days=1)


@dataclass(frozen=True, slots=True, order=True)
class Window:
    """A closed stretch of time: an hour of a day that still grows, or a whole day that has been sealed."""

    start: dt.datetime
    end: dt.datetime
    """UTC both; the end is not part of it."""

    @property
    def day(self) -> dt.date:
        """The day in whose folder it is kept."""
        return self.start.date()

    @property
    def is_day(self) -> bool:
        """Whether it is a whole day, and replaces whatever hours were summarized of it."""
        return self.end - self.start == DAY

    def __str__(self) -> str:
        whole_hour = self.end - self.start == HOUR
        until = "" if whole_hour else f" to {self.end:%H:%M:%S}"
        return f"{self.day}" if self.is_day else f"{self.start:%Y-%m-%d %H:%M}{until}"


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The broker's words, from its enums: what is added to those shows up in the summaries by itself."""

    statuses: tuple[str, ...]
    unfinished: tuple[str, ...]
    delivered: str
    neutral: tuple[str, ...]
    """Final statuses that say nothing of the endpoint: they are no failure, nor part of a rate."""
    redundant: str
    """That of them in which a delivery ends when another endpoint of its group took the message."""
    kinds: tuple[str, ...]
    """Kinds of events, then what is fetched from mailboxes, and what replies to callbacks count as: the last one."""
    pulled_kind: str
    """That of what is fetched."""
    pull_mode: str
    """How subscriptions are called whose deliveries wait to be fetched."""
    queue_kind: str
    sync_kind: str
    """That of what is asked once, while somebody waits."""
    outcomes: tuple[str, ...]
    """Of messages."""
    failures: tuple[tuple[str, str], ...]
    """How an attempt's error text is recognized, a regular expression that it begins with, and its class; in order."""
    unknown_failure: str
    holding: tuple[tuple[str, tuple[int, ...]], ...]
    """For each kind, after which answers nothing may overtake; 0 stands for no answer."""
    ending: tuple[tuple[str, tuple[int, ...]], ...]
    """For each kind, after which answers a delivery is never sent again."""
    means_hold: str
    """What is recorded of an attempt where its retry policy said what follows: nothing may overtake;"""
    means_deferred: str
    """the next one goes;"""
    means_retry_lane: str
    """it is tried again beside the others;"""
    means_end: str
    """it was the last. So `holding` and `ending` are for those of which nothing is recorded."""

    @property
    def reply_kind(self) -> str:
        """What the replies to callbacks count as."""
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
    """How many rows one reading transaction copies, about: long ones stop vacuum."""

    def as_json(self) -> str:
        """Return it as a text that `from_json` reads."""
        return json.dumps(asdict(self), default=dt.datetime.isoformat)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Return the job that a text describes.

        Raises:
            ValueError, KeyError, TypeError: it describes none.

        """
        said: dict[str, Any] = json.loads(text)
        windows = tuple(Window(*map(dt.datetime.fromisoformat, (one["start"], one["end"]))) for one in said["windows"])
        words = {name: _frozen(value) for name, value in said["vocabulary"].items()}
        return cls(**{**said, "windows": windows, "vocabulary": Vocabulary(**words)})


def _frozen(value: Any) -> Any:
    return tuple(map(_frozen, value)) if isinstance(value, list) else value
