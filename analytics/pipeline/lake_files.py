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
class LakeFiles:
    """A folder, local or in an object store; paths are relative to it."""

    files: fs.SubTreeFileSystem
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
            return cls(fs.SubTreeFileSystem(path, fs.LocalFileSystem()), f"file://{path}")
        files, root = fs.FileSystem.from_uri(f"{ARROW_SCHEMES.get(scheme, scheme)}://{rest}")
        return cls(fs.SubTreeFileSystem(root.rstrip("/"), files), address.rstrip("/"))

    @property
    def folder(self) -> Path | None:
        """The folder on this machine; None in an object store."""
        return Path(self.files.base_path) if isinstance(self.files.base_fs, fs.LocalFileSystem) else None

    def url(self, path: str) -> str:
        """Return Spark's URL of a path to write."""
        return f"{self.address}/{path}"

    def url_to_read(self, path: str) -> str:
        """Return Spark's URL of a path to read, with patterns escaped."""
        return PATTERN.sub(r"\\\1", self.url(path))

    def text(self, path: str) -> str | None:
        """Return the content of a file; None if it does not exist."""
        if self.files.get_file_info(path).type is fs.FileType.NotFound:
            return None
        with self.files.open_input_stream(path) as stream:
            return bytes(stream.read()).decode(errors="replace")

    def replace(self, path: str, text: str) -> None:
        """Replace a file atomically and durably: readers find the old text or the new one.

        An interrupted replacement may leave a file in `tmp/`, which `Lake.sweep` deletes.
        """
        if self.folder is None:  # an object appears when it is complete
            with self.files.open_output_stream(path) as stream:
                stream.write(text.encode())
            return
        target, new = self.folder / path, self.folder / TEMPORARY / posixpath.basename(path)
        for folder in (target.parent, new.parent):
            folder.mkdir(parents=True, exist_ok=True)
        new.write_text(text)
        _fsync(new)
        new.replace(target)
        _fsync(target.parent)

    def flush(self, path: str) -> None:
        """Put the Parquet files of a folder on disk, so that they survive a power cut."""
        if self.folder:  # an object is durable once it has appeared
            folder = self.folder / path
            for entry in (*folder.glob("*.parquet"), folder, *folder.parents):
                if entry.is_relative_to(self.folder):
                    _fsync(entry)

    def folders(self, path: str, depth: int) -> set[str]:
        """Return the folders `depth` levels below a folder, as paths from the root; empty if it does not exist."""
        levels = path.count("/") + 1 + depth
        names = [entry.path.split("/") for entry in self._entries(path, recursive=True)]
        return {"/".join(parts[:levels]) for parts in names if len(parts) >= levels}

    def size(self, path: str) -> int:
        """Return the bytes of the Parquet in a folder."""
        return sum(entry.size for entry in self._entries(path, recursive=True) if entry.path.endswith(".parquet"))

    def entries(self, path: str) -> list[str]:
        """Return the names of a folder's entries; empty if it does not exist."""
        return [entry.base_name for entry in self._entries(path)]

    def _entries(self, path: str, *, recursive: bool = False) -> list[fs.FileInfo]:
        selector = fs.FileSelector(path, allow_not_found=True, recursive=recursive)
        return list(self.files.get_file_info(selector))


def _fsync(path: Path) -> None:
    """Wait until a file, or a folder's list of files, is on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
