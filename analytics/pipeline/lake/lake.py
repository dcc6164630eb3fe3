"""The lake: days read by their manifests, and what a run adds before a manifest names it."""

import datetime as dt
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, count
from typing import Final, cast

import pyarrow as pa
import pyarrow.dataset as ds
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from analytics.pipeline.job import Window
from analytics.pipeline.lake.manifests import FOLDER, DamagedManifest, Manifest, Part, UnknownManifest, day_of, path_of
from analytics.pipeline.lake.places import Place
from analytics.pipeline.tables import BRONZE, GOLD, SILVER, Table

BATCH_ROWS: Final = 10_000
"""A few megabytes of the widest summary."""
ANEW: Final = "hours=anew"
"""The folder, in its day, of what is made again of the whole day when other days have changed."""

TABLES: Final = BRONZE + SILVER + GOLD
LEVELS: Final = 2
"""Below the day of a table: the hours, and the run."""
TOUCHED: Final = f"{FOLDER}/touched"
"""Where a day has a mark while there may be folders of it that do not count."""
CHANGED: Final = f"{FOLDER}/changed"
"""Where a day has a mark while there may be days after it that are made of what it was before."""


@dataclass(frozen=True, slots=True)
class Lake:
    """What has happened, day by day."""

    place: Place
    spark: SparkSession

    def manifest(self, day: dt.date) -> Manifest:
        """Return what counts of a day.

        Raises:
            OSError, UnknownManifest, DamagedManifest: it cannot be read.

        """
        text = self.place.text(path_of(day))
        return Manifest(day) if text is None else Manifest.from_json(text)

    def known(self, day: dt.date, say: Callable[[str], None]) -> Manifest:
        """Return what counts of a day, or an empty manifest, and say so, where it cannot be told."""
        try:
            return self.manifest(day)
        except (UnknownManifest, DamagedManifest) as failure:
            say(f"{path_of(day)}: {failure}; nothing is known of the day meanwhile")
            return Manifest(day)

    def keep(self, manifest: Manifest) -> None:
        """Let this count of its day, and nothing else, from one moment to the next."""
        self.place.replace(path_of(manifest.day), manifest.as_json())

    def days(self) -> list[dt.date]:
        """Return the days that have a manifest."""
        days = (day_of(name) for name in self.place.entries(FOLDER) if name.endswith(".json"))
        return sorted(day for day in days if day)

    def mark(self, folder: str, day: dt.date) -> None:
        """Remember something of a day."""
        self.place.replace(f"{folder}/dt={day}", "")

    def marked(self, folder: str) -> set[dt.date]:
        """Return the days of which something is remembered."""
        return {day for day in map(day_of, self.place.entries(folder)) if day}

    def unmark(self, folder: str, day: dt.date) -> None:
        """Remember it no more."""
        self.place.forget(f"{folder}/dt={day}")

    def touch(self, day: dt.date) -> None:
        """Remember that a day may get folders that do not count: replaced, or left by a run that was interrupted."""
        self.mark(TOUCHED, day)

    def sweep(self, say: Callable[[str], None]) -> None:
        """Remove what does not count, of the days that were touched; nobody else may be writing meanwhile.

        A day whose manifest cannot be read keeps all it has, and its mark.
        """
        self.place.clear()
        for mark in sorted(self.place.entries(TOUCHED)):
            day = day_of(mark)
            if day is None or self._swept(day, say):
                self.place.forget(f"{TOUCHED}/{mark}")

    def _swept(self, day: dt.date, say: Callable[[str], None]) -> bool:
        try:
            counting = {part.folder for part in self.manifest(day).parts()}
        except (UnknownManifest, DamagedManifest) as failure:
            say(f"{path_of(day)}: {failure}; nothing of the day is removed meanwhile")
            return False
        for table in TABLES:
            for folder in self.place.folders(f"{table.path}/dt={day}", LEVELS) - counting:
                self.place.remove(folder)
        return True

    def write(self, frame: DataFrame, table: Table, folder: str) -> None:
        """Write rows of a table to a folder that is not there yet.

        Raises:
            PySparkException, Py4JError: they cannot be written, or are not what the table is made of.

        """
        frame.to(schema_of(table)).write.parquet(self.place.written(folder))

    def read(self, table: Table, folders: Iterable[str]) -> DataFrame:
        """Return the rows of a table in some folders; a column that a folder does not know is null."""
        paths = [self.place.read(folder) for folder in folders]
        if not paths:
            return self.spark.createDataFrame([], schema_of(table))
        return self.spark.read.schema(schema_of(table)).parquet(*paths)

    def of_days(self, table: Table, manifests: Iterable[Manifest]) -> DataFrame:
        """Return what counts of a table on some days."""
        parts = (part for manifest in manifests for part in manifest.parts())
        return self.read(table, [part.folder for part in parts if part.table == table.path])


class Stage:
    """The folders of a run for some hours of a day, a table each: `<layer>/<name>/dt=2026-11-20/hours=13-14/run=7`."""

    def __init__(self, lake: Lake, manifest: Manifest, hours: str, run: int) -> None:
        self.parts: dict[Table, Part] = {}
        self._lake = lake
        self._day = f"dt={manifest.day}"
        self._folder = f"{hours}/run={_name(run, hours, manifest)}"

    def keep(self, table: Table, frame: DataFrame) -> DataFrame:
        """Write a table; return what has been written.

        Raises:
            PySparkException, Py4JError, OSError: it has not.

        """
        folder = f"{table.path}/{self._day}/{self._folder}"
        self._lake.write(frame, table, folder)
        self.parts[table] = Part(table.path, folder, self._dataset(folder).count_rows(), table.columns)
        return self._lake.read(table, [folder])

    def frames(self, tables: Iterable[Table]) -> dict[Table, DataFrame]:
        """Return what has been kept of some tables."""
        return {table: self._lake.read(table, [self.parts[table].folder]) for table in tables}

    def batches(self, table: Table) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a table that has been kept, a few at a time, without Spark."""
        rows = self._dataset(self.parts[table].folder)
        yield from rows.to_batches(batch_size=BATCH_ROWS, batch_readahead=1, fragment_readahead=1)

    def settle(self) -> None:
        """See to it that what has been kept is still there after a power cut, before a manifest names it."""
        for part in self.parts.values():
            self._lake.place.settle(part.folder)

    def size(self) -> int:
        """Return the bytes of all that has been kept."""
        return sum(self._lake.place.size(part.folder) for part in self.parts.values())

    def _dataset(self, folder: str) -> ds.Dataset:
        place = self._lake.place
        return ds.dataset(
            f"{place.root}/{folder}", filesystem=place.files, format="parquet", exclude_invalid_files=False
        )


def hours_of(window: Window) -> str:
    """Return the folder of a window in its day; a whole day is `hours=00-24`."""
    return "hours=00-24" if window.is_day else f"hours={window.start:%H}-{window.start.hour + 1:02}"


def _name(run: int, hours: str, manifest: Manifest) -> str:
    """Return what a run calls its folders: its number, and more where a run of that number is what counts."""
    here = f"/{hours}/run="
    taken = {part.folder.partition(here)[2] for part in manifest.parts()}
    names = chain([str(run)], (f"{run}-{again}" for again in count(2)))
    return next(name for name in names if name not in taken)


def schema_of(table: Table) -> StructType:
    """Return the columns of a table as Spark's schema; each may be null."""
    return cast("StructType", StructType.fromDDL(table.columns))
