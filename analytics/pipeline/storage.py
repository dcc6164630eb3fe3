"""The lake's file system, local or an object store, for the operations that Spark does not offer."""

import os
import posixpath
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self
from urllib.parse import unquote

from pyarrow import fs

ARROW_SCHEMES: Final = {"s3a": "s3", "s3n": "s3", "wasbs": "abfs", "abfss": "abfs"}
"""Names of file systems that Arrow calls differently than Hadoop."""
PATTERN: Final = re.compile(r"([\[\]{}*?\\])")
"""Characters that Spark interprets as patterns in paths to read."""
TEMPORARY: Final = "tmp"
"""The folder of files that will replace others; next to them they would be listed as manifests or marks."""


@dataclass(frozen=True, slots=True)
class Storage:
    """A folder, local or in an object store."""

    files: fs.FileSystem
    root: str
    """Its path in `files`."""
    address: str
    """Its URL for Spark."""

    @classmethod
    def at(cls, address: str) -> Self:
        """Return the storage at a path or URL.

        Raises:
            OSError, ValueError: the address is invalid.

        """
        scheme, separator, rest = address.partition("://")
        if not separator or scheme == "file":
            path = str(Path(unquote(rest) if separator else address).absolute())
            return cls(fs.LocalFileSystem(), path, f"file://{path}")
        files, root = fs.FileSystem.from_uri(f"{ARROW_SCHEMES.get(scheme, scheme)}://{rest}")
        return cls(files, root.rstrip("/"), address.rstrip("/"))

    def url(self, path: str) -> str:
        """Return Spark's URL of a path to write."""
        return f"{self.address}/{path}"

    def url_to_read(self, path: str) -> str:
        """Return Spark's URL of a path to read, with patterns escaped."""
        return PATTERN.sub(r"\\\1", self.url(path))

    def text(self, path: str) -> str | None:
        """Return the content of a file; None if it does not exist."""
        if self.files.get_file_info(self._path(path)).type is fs.FileType.NotFound:
            return None
        with self.files.open_input_stream(self._path(path)) as stream:
            return bytes(stream.read()).decode(errors="replace")

    def replace(self, path: str, text: str) -> None:
        """Replace a file atomically and durably: readers find the old text or the new one.

        An interrupted replacement may leave a file in `tmp/`, which `delete_temporary_files` removes.
        """
        if not isinstance(self.files, fs.LocalFileSystem):  # an object appears when it is complete
            with self.files.open_output_stream(self._path(path)) as stream:
                stream.write(text.encode())
            return
        target, new = Path(self._path(path)), Path(self._path(TEMPORARY), posixpath.basename(path))
        for folder in (target.parent, new.parent):
            folder.mkdir(parents=True, exist_ok=True)
        new.write_text(text)
        _fsync(new)
        new.replace(target)
        _fsync(target.parent)

    def flush(self, path: str) -> None:
        """Put the Parquet files of a folder on disk, so that they survive a power cut."""
        if isinstance(self.files, fs.LocalFileSystem):  # an object is durable once it has appeared
            folder = Path(self._path(path))
            for entry in (*folder.glob("*.parquet"), folder, *folder.parents):
                if entry.is_relative_to(self.root):
                    _fsync(entry)

    def delete_temporary_files(self) -> None:
        """Delete what interrupted replacements left; nobody else may be replacing files meanwhile."""
        for name in self.entries(TEMPORARY):
            self.delete_file(f"{TEMPORARY}/{name}")

    def folders(self, path: str, depth: int) -> set[str]:
        """Return the folders `depth` levels below a folder, as paths from the root; empty if it does not exist."""
        levels = path.count("/") + 1 + depth
        names = [entry.path.removeprefix(f"{self.root}/").split("/") for entry in self._all(path)]
        return {"/".join(parts[:levels]) for parts in names if len(parts) >= levels}

    def size(self, path: str) -> int:
        """Return the bytes of the Parquet in a folder."""
        return sum(entry.size for entry in self._all(path) if entry.path.endswith(".parquet"))

    def entries(self, path: str) -> list[str]:
        """Return the names of a folder's entries; empty if it does not exist."""
        selector = fs.FileSelector(self._path(path), allow_not_found=True)
        return [entry.base_name for entry in self.files.get_file_info(selector)]

    def delete_folder(self, path: str) -> None:
        """Delete a folder with its content."""
        self.files.delete_dir(self._path(path))

    def delete_file(self, path: str) -> None:
        """Delete a file."""
        self.files.delete_file(self._path(path))

    def _all(self, path: str) -> list[fs.FileInfo]:
        selector = fs.FileSelector(self._path(path), allow_not_found=True, recursive=True)
        return list(self.files.get_file_info(selector))

    def _path(self, path: str) -> str:
        return f"{self.root}/{path}"


def _fsync(path: Path) -> None:
    """Wait until a file, or a folder's list of files, is on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
