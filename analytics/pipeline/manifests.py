"""Manifests: the file of a day that says which folders of the lake count, and what they hold."""

import datetime as dt
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Final, Self

from analytics.pipeline.job import HOUR, Check, Window, midnight

VERSION: Final = 1
FOLDER: Final = "manifests"
DAY_NAME: Final = re.compile(r"dt=(\d{4}-\d\d-\d\d)(?:\.json)?")
"""The name of everything of a day: its manifest, its marks, its folder in a table."""


class UnreadableManifest(ValueError):
    """The file is damaged, or a later version of the broker wrote it."""


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
    """What one run computed of one window."""

    window: Window
    run: int
    inputs: Mapping[str, int]
    """What the partitions of the database held: `{leaf: rows}`."""
    checks: tuple[Check, ...]
    parts: tuple[Part, ...]

    @classmethod
    def from_json(cls, piece: Mapping[str, Any]) -> Self:
        """Return the piece that a JSON object describes."""
        return cls(
            Window.from_json(piece["window"]),
            piece["run"],
            piece["inputs"],
            tuple(Check(**check) for check in piece["checks"]),
            tuple(Part(**part) for part in piece["parts"]),
        )


@dataclass(frozen=True, slots=True)
class Manifest:
    """One day."""

    day: dt.date
    pieces: tuple[Piece, ...] = ()
    """In order of time, not overlapping."""
    daily: tuple[Part, ...] = ()
    """Tables computed from the whole day, as far as it is known, and the days before."""

    def with_piece(self, piece: Piece) -> Self:
        """Return it with a window added; pieces that overlap it are dropped."""
        window = piece.window
        others = (one for one in self.pieces if one.window.end <= window.start or window.end <= one.window.start)
        return replace(self, pieces=tuple(sorted((*others, piece), key=lambda one: one.window)))

    @property
    def hours(self) -> frozenset[dt.datetime]:
        """The beginnings of the hours that are known from beginning to end."""
        of_day = [midnight(self.day) + number * HOUR for number in range(24)]
        windows = [piece.window for piece in self.pieces]
        return frozenset(
            hour for hour in of_day if any(one.start <= hour and hour + HOUR <= one.end for one in windows)
        )

    def rows_in(self, window: Window) -> Mapping[str, int]:
        """Return the number of rows of each table, by its path, in the windows inside this one."""
        rows: Counter[str] = Counter()
        for piece in self.pieces:
            if window.start <= piece.window.start and piece.window.end <= window.end:
                rows.update({part.table: part.rows for part in piece.parts})
        return rows

    def parts(self) -> Iterator[Part]:
        """Yield everything that counts."""
        for piece in self.pieces:
            yield from piece.parts
        yield from self.daily

    def as_json(self) -> str:
        """Return it as a text that `from_json` reads."""
        return json.dumps({"version": VERSION, **asdict(self)}, default=lambda moment: moment.isoformat(), indent=1)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Return the manifest that a text describes.

        Raises:
            UnreadableManifest: the text is not a manifest, or of another version.
        """
        try:
            document: dict[str, Any] = json.loads(text)
            if (version := document["version"]) == VERSION:
                day = dt.date.fromisoformat(document["day"])
                pieces = tuple(map(Piece.from_json, document["pieces"]))
                return cls(day, pieces, tuple(Part(**part) for part in document["daily"]))
        except (ValueError, LookupError, TypeError) as failure:
            cause = f"{type(failure).__name__}: {failure}"
            raise UnreadableManifest(f"damaged manifest ({cause}): summarizing the whole day replaces it") from failure
        raise UnreadableManifest(f"manifest of version {version}, where {VERSION} is known")


def path_of(day: dt.date) -> str:
    """Return the path of a day's manifest."""
    return f"{FOLDER}/dt={day}.json"


def day_of(name: str) -> dt.date | None:
    """Return the day of a file or folder of the lake, by its name; None for other files."""
    match = DAY_NAME.fullmatch(name)
    try:
        return dt.date.fromisoformat(match[1]) if match else None
    except ValueError:
        return None
