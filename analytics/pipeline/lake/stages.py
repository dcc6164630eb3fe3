"""What a run makes of a window: in the lake, but of no account until a manifest names it."""

from collections.abc import Iterable, Iterator
from itertools import chain, count
from typing import Final

import pyarrow as pa
import pyarrow.dataset as ds
from pyspark.sql import DataFrame

from analytics.pipeline.job import Window
from analytics.pipeline.lake.lake import Lake
from analytics.pipeline.lake.manifests import Manifest, Part
from analytics.pipeline.tables import Table

BATCH_ROWS: Final = 10_000
"""A few megabytes of the widest summary."""
ANEW: Final = "hours=anew"
"""The folder, in its day, of what is made again of the whole day when other days have changed."""


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
