"""What a day of the lake is made of: the file that says which folders count, and what they hold."""

import datetime as dt
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Final, Self

from analytics.pipeline.job import HOUR, Window
from analytics.pipeline.reports import Check

VERSION: Final = 1
FOLDER: Final = "manifests"
OF_DAY: Final = re.compile(r"dt=(\d{4}-\d\d-\d\d)(?:\.json)?")
"""What everything of a day is called: its manifest, its marks, its folder in a table."""


class UnknownManifest(Exception):
    """A manifest of another version; the lake was written by a later one of the broker."""


class DamagedManifest(ValueError):
    """What should be a manifest is none; it may have been written, or copied, in part."""


@dataclass(frozen=True, slots=True)
class Part:
    """One folder: some rows of a table."""

    table: str
    """`layer/name`."""
    folder: str
    """From the lake's root."""
    rows: int
    columns: str
    """As Spark's DDL."""


@dataclass(frozen=True, slots=True)
class Piece:
    """What one run made of one window."""

    window: Window
    run: int
    inputs: Mapping[str, int]
    """What the leaves of the database held: `{leaf: rows}`."""
    checks: tuple[Check, ...]
    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class Manifest:
    """One day."""

    day: dt.date
    pieces: tuple[Piece, ...] = ()
    """In order of time, none over another."""
    daily: tuple[Part, ...] = ()
    """Tables made of the whole day, as far as it is known, and the days before."""

    def with_piece(self, piece: Piece) -> Self:
        """Return it with a window done, instead of whatever was known of that time."""
        others = (one for one in self.pieces if not _overlap(one.window, piece.window))
        return replace(self, pieces=tuple(sorted((*others, piece), key=lambda one: one.window)))

    def with_daily(self, parts: tuple[Part, ...]) -> Self:
        """Return it with other tables of the whole day."""
        return replace(self, daily=parts)

    @property
    def hours(self) -> frozenset[dt.datetime]:
        """The beginnings of the hours that are known from beginning to end."""
        return frozenset(hour for piece in self.pieces for hour in _whole_hours(piece.window))

    def rows_in(self, window: Window) -> Mapping[str, int]:
        """Return how many rows each table, by its path, has of the windows that lie in this one."""
        inside = (one for one in self.pieces if window.start <= one.window.start and one.window.end <= window.end)
        rows: Counter[str] = Counter()
        for piece in inside:
            rows.update({part.table: part.rows for part in piece.parts})
        return rows

    def parts(self) -> Iterator[Part]:
        """Yield all that counts."""
        for piece in self.pieces:
            yield from piece.parts
        yield from self.daily

    def as_json(self) -> str:
        """Return it as a text that `from_json` reads."""
        return json.dumps({"version": VERSION, **asdict(self)}, default=_iso, indent=1)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Return the manifest that a text describes.

        Raises:
            UnknownManifest: it is of a version that this one does not know.
            DamagedManifest: it says what none can.

        """
        try:
            said: dict[str, Any] = json.loads(text)
            if said["version"] != VERSION:
                raise UnknownManifest(f"manifest of version {said['version']}, where {VERSION} is known")
            day = dt.date.fromisoformat(said["day"])
            return cls(day, tuple(map(_piece, said["pieces"])), tuple(Part(**part) for part in said["daily"]))
        except (ValueError, LookupError, TypeError) as failure:
            told = f"{type(failure).__name__}: {failure}"
            raise DamagedManifest(f"damaged manifest ({told}): summarizing the whole day replaces it") from failure


def path_of(day: dt.date) -> str:
    """Return where the manifest of a day is."""
    return f"{FOLDER}/dt={day}.json"


def day_of(name: str) -> dt.date | None:
    """Return the day that a file or folder of the lake is of, by its name; None for what is none of the lake's."""
    named = OF_DAY.fullmatch(name)
    try:
        return dt.date.fromisoformat(named[1]) if named else None
    except ValueError:
        return None


def _piece(said: Mapping[str, Any]) -> Piece:
    window = Window(*map(dt.datetime.fromisoformat, (said["window"]["start"], said["window"]["end"])))
    checks = tuple(Check(**check) for check in said["checks"])
    return Piece(window, said["run"], said["inputs"], checks, tuple(Part(**part) for part in said["parts"]))


def _whole_hours(window: Window) -> Iterator[dt.datetime]:
    midnight = dt.datetime.combine(window.day, dt.time(), dt.UTC)
    hours = (midnight + nth * HOUR for nth in range((window.end - midnight) // HOUR))
    return (hour for hour in hours if hour >= window.start)


def _overlap(one: Window, other: Window) -> bool:
    return one.start < other.end and other.start < one.end


def _iso(moment: dt.date) -> str:
    return moment.isoformat()
