"""The lake: Parquet by layer, table and day. Only folders that a day's manifest names count.

<lake>/bronze/deliveries/dt=2026-11-20/hours=00-24/run=7/part-….zstd.parquet
<lake>/manifests/dt=2026-11-20.json
"""

import datetime as dt
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, count
from typing import Final

import pyarrow as pa
import pyarrow.dataset as ds
from pyarrow import parquet
from pyspark.sql import DataFrame, SparkSession

from analytics.pipeline.job import Window
from analytics.pipeline.lake_files import TEMPORARY, LakeFiles
from analytics.pipeline.manifests import FOLDER, Manifest, Part, UnreadableManifest, day_of, path_of
from analytics.pipeline.tables import BRONZE, GOLD, SILVER, Table
from analytics.pipeline.transforms.frames import schema_of

BATCH_ROWS: Final = 10_000
"""A few megabytes of the widest summary."""
RECOMPUTED: Final = "hours=recomputed"
"""The folder, in its day, of daily summaries that are recomputed after other days have changed."""
RUN_DEPTH: Final = 2
"""A run's folder is two levels below the day of a table: hours, run."""
TOUCHED: Final = f"{FOLDER}/touched"
"""Marks of days that may have folders that do not count."""
CHANGED: Final = f"{FOLDER}/changed"
"""Marks of days that changed after later days were computed from them."""


@dataclass(frozen=True, slots=True)
class Lake:
    """The lake, and how to get the Spark session that reads and writes it."""

    storage: LakeFiles
    spark: Callable[[], SparkSession]
    """Starts Spark when it is first called: idle windows need none."""

    def manifest(self, day: dt.date) -> Manifest:
        """Return the manifest of a day; empty for a day without files.

        Raises:
            OSError, UnreadableManifest: it cannot be read.
        """
        text = self.storage.text(path_of(day))
        return Manifest(day) if text is None else Manifest.from_json(text)

    def readable_manifest(self, day: dt.date, report: Callable[[str], None]) -> Manifest:
        """Return the manifest of a day; an empty one, reported, if it cannot be interpreted."""
        try:
            return self.manifest(day)
        except UnreadableManifest as failure:
            report(f"{path_of(day)}: {failure}; nothing is known of the day meanwhile")
            return Manifest(day)

    def commit(self, manifest: Manifest) -> None:
        """Replace a day's manifest atomically."""
        self.storage.replace(path_of(manifest.day), manifest.as_json())

    def days(self) -> set[dt.date]:
        """Return the days that have a manifest."""
        return {day for name in self.storage.entries(FOLDER) if name.endswith(".json") and (day := day_of(name))}

    def mark(self, folder: str, day: dt.date) -> None:
        """Mark a day as `TOUCHED` or `CHANGED`."""
        self.storage.replace(f"{folder}/dt={day}", "")

    def marked(self, folder: str) -> set[dt.date]:
        """Return the marked days."""
        return {day for day in map(day_of, self.storage.entries(folder)) if day}

    def unmark(self, folder: str, day: dt.date) -> None:
        """Remove a mark."""
        self.storage.files.delete_file(f"{folder}/dt={day}")

    def sweep(self, report: Callable[[str], None]) -> None:
        """Delete the folders of touched days that do not count; nobody else may be writing meanwhile.

        A day whose manifest cannot be read keeps everything, and its mark.
        """
        for name in self.storage.entries(TEMPORARY):
            self.storage.files.delete_file(f"{TEMPORARY}/{name}")
        for name in sorted(self.storage.entries(TOUCHED)):
            if day := day_of(name):
                try:
                    counting = {part.folder for part in self.manifest(day).parts()}
                except UnreadableManifest as failure:
                    report(f"{path_of(day)}: {failure}; nothing of the day is removed meanwhile")
                    continue
                for table in BRONZE + SILVER + GOLD:
                    for folder in self.storage.folders(f"{table.path}/dt={day}", RUN_DEPTH) - counting:
                        self.storage.files.delete_dir(folder)
            self.storage.files.delete_file(f"{TOUCHED}/{name}")

    def read(self, table: Table, folders: Iterable[str]) -> DataFrame:
        """Return the rows of a table in some folders; columns that older files do not have are null."""
        paths = [self.storage.url_to_read(folder) for folder in folders]
        if not paths:
            return self.spark().createDataFrame([], schema_of(table))
        return self.spark().read.schema(schema_of(table)).parquet(*paths)

    def read_days(self, table: Table, manifests: Iterable[Manifest]) -> DataFrame:
        """Return the rows of a table that count on some days."""
        parts = (part for manifest in manifests for part in manifest.parts())
        return self.read(table, [part.folder for part in parts if part.table == table.path])


class Stage:
    """A run's folders for one window, one per table: `<layer>/<name>/dt=2026-11-20/hours=13-14/run=7`."""

    def __init__(self, lake: Lake, manifest: Manifest, hours: str, run: int) -> None:
        self.parts: dict[Table, Part] = {}
        self._lake = lake
        marker = f"/{hours}/run="
        taken = {part.folder.partition(marker)[2] for part in manifest.parts()}
        names = chain([str(run)], (f"{run}-{again}" for again in count(2)))  # a run of this number may count already
        self._folder = f"dt={manifest.day}{marker}{next(name for name in names if name not in taken)}"

    def write(self, table: Table, frame: DataFrame) -> DataFrame:
        """Write a table; return what has been written.

        Raises:
            PySparkException, Py4JError, OSError: it cannot be written, or does not have the table's columns.
        """
        folder = f"{table.path}/{self._folder}"
        frame.to(schema_of(table)).write.parquet(self._lake.storage.url(folder))
        self.parts[table] = Part(table.path, folder, self._dataset(folder).count_rows(), table.columns)
        return self._lake.read(table, [folder])

    def write_batches(self, table: Table, batches: Sequence[pa.RecordBatch]) -> None:
        """Write rows of a table without Spark; nothing if there are none."""
        if batches:
            folder, rows = f"{table.path}/{self._folder}", pa.Table.from_batches(batches)
            self._lake.storage.files.create_dir(folder)
            file = f"{folder}/part-0.zstd.parquet"
            parquet.write_table(rows, file, filesystem=self._lake.storage.files, compression="zstd")
            self.parts[table] = Part(table.path, folder, rows.num_rows, table.columns)

    def frames(self, tables: Iterable[Table]) -> dict[Table, DataFrame]:
        """Return what has been written of some tables."""
        return {table: self._lake.read(table, [self.parts[table].folder]) for table in tables}

    def batches(self, table: Table) -> Iterator[pa.RecordBatch]:
        """Yield the written rows of a table in batches, without Spark."""
        if table in self.parts:
            rows = self._dataset(self.parts[table].folder)
            yield from rows.to_batches(batch_size=BATCH_ROWS, batch_readahead=1, fragment_readahead=1)

    def flush(self) -> None:
        """Put everything on disk, so that it survives a power cut, before a manifest names it."""
        for part in self.parts.values():
            self._lake.storage.flush(part.folder)

    def size(self) -> int:
        """Return the bytes of everything written."""
        return sum(self._lake.storage.size(part.folder) for part in self.parts.values())

    def _dataset(self, folder: str) -> ds.Dataset:
        files = self._lake.storage.files
        return ds.dataset(folder, filesystem=files, format="parquet", exclude_invalid_files=False)


def hours_of(window: Window) -> str:
    """Return the folder of a window in its day; a whole day is `hours=00-24`."""
    return "hours=00-24" if window.is_day else f"hours={window.start:%H}-{window.start.hour + 1:02}"
