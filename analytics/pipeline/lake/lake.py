"""What counts of a lake: days read by their manifests, and the leftovers of others removed."""

import datetime as dt
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, cast

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from analytics.pipeline.lake.manifests import FOLDER, DamagedManifest, Manifest, UnknownManifest, day_of, path_of
from analytics.pipeline.lake.places import Place
from analytics.pipeline.tables import BRONZE, GOLD, SILVER, Table

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


def schema_of(table: Table) -> StructType:
    """Return the columns of a table as Spark's schema; each may be null."""
    return cast("StructType", StructType.fromDDL(table.columns))
