"""Files and folders of a lake, on a path or in an object store: what Spark does not do itself."""

import os
import posixpath
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self
from urllib.parse import unquote

from pyarrow import fs

ARROW_SCHEMES: Final = {"s3a": "s3", "s3n": "s3", "wasbs": "abfs", "abfss": "abfs"}
"""The names of Hadoop's file systems in Arrow, where they are not the same."""
PATTERN: Final = re.compile(r"([\[\]{}*?\\])")
"""What Spark takes for a pattern in a path that it reads."""
NEW: Final = "tmp"
"""Where a file is written that is to replace another: beside it, whoever lists its folder could take it for one."""


@dataclass(frozen=True, slots=True)
class Place:
    """A folder, here or in an object store."""

    files: fs.FileSystem
    root: str
    """Its path in `files`."""
    address: str
    """What Spark calls it."""

    @classmethod
    def at(cls, address: str) -> Self:
        """Return the place that a path or URL leads to.

        Raises:
            OSError, ValueError: it leads nowhere.

        """
        scheme, separator, rest = address.partition("://")
        if not separator or scheme == "file":
            path = str(Path(unquote(rest) if separator else address).absolute())
            return cls(fs.LocalFileSystem(), path, f"file://{path}")
        files, root = fs.FileSystem.from_uri(f"{ARROW_SCHEMES.get(scheme, scheme)}://{rest}")
        return cls(files, root.rstrip("/"), address.rstrip("/"))

    def written(self, path: str) -> str:
        """Return what Spark calls something here that it writes."""
        return f"{self.address}/{path}"

    def read(self, path: str) -> str:
        """Return what Spark calls something here that it reads."""
        return PATTERN.sub(r"\\\1", self.written(path))

    def text(self, path: str) -> str | None:
        """Return what a file says; None where there is none."""
        if self.files.get_file_info(self._path(path)).type is fs.FileType.NotFound:
            return None
        with self.files.open_input_stream(self._path(path)) as stream:
            return bytes(stream.read()).decode(errors="replace")

    def replace(self, path: str, text: str) -> None:
        """Let a file say something else, at once: whoever reads it finds the old text or the new one.

        It does even after a power cut. Who is interrupted may leave a file in `tmp/`, which `clear` removes.
        """
        if not isinstance(self.files, fs.LocalFileSystem):  # an object appears when it is complete
            with self.files.open_output_stream(self._path(path)) as stream:
                stream.write(text.encode())
            return
        target, new = Path(self._path(path)), Path(self._path(NEW), posixpath.basename(path))
        for folder in (target.parent, new.parent):
            folder.mkdir(parents=True, exist_ok=True)
        new.write_text(text)
        _put_on_disk(new)
        new.replace(target)
        _put_on_disk(target.parent)

    def settle(self, path: str) -> None:
        """See to it that the Parquet in a folder is still there after a power cut."""
        if isinstance(self.files, fs.LocalFileSystem):  # an object is, once it has appeared
            folder = Path(self._path(path))
            for one in (*folder.glob("*.parquet"), folder, *folder.parents):
                if one.is_relative_to(self.root):
                    _put_on_disk(one)

    def clear(self) -> None:
        """Remove what was left by who was interrupted in replacing a file; nobody else may be doing so meanwhile."""
        for name in self.entries(NEW):
            self.forget(f"{NEW}/{name}")

    def folders(self, path: str, depth: int) -> set[str]:
        """Return the folders so many levels below a folder, as paths from the root; none where it does not exist."""
        below = [self._relative(one.path) for one in self._all(path)]
        levels = path.count("/") + 1 + depth
        return {"/".join(one.split("/")[:levels]) for one in below if one.count("/") + 1 >= levels}

    def size(self, path: str) -> int:
        """Return the bytes of the Parquet in a folder."""
        return sum(one.size for one in self._all(path) if one.path.endswith(".parquet"))

    def entries(self, path: str) -> list[str]:
        """Return the names of what is in a folder; none where it does not exist."""
        selector = fs.FileSelector(self._path(path), allow_not_found=True)
        return [one.base_name for one in self.files.get_file_info(selector)]

    def remove(self, path: str) -> None:
        """Remove a folder."""
        self.files.delete_dir(self._path(path))

    def forget(self, path: str) -> None:
        """Remove a file."""
        self.files.delete_file(self._path(path))

    def _all(self, path: str) -> list[fs.FileInfo]:
        selector = fs.FileSelector(self._path(path), allow_not_found=True, recursive=True)
        return list(self.files.get_file_info(selector))

    def _path(self, path: str) -> str:
        return f"{self.root}/{path}"

    def _relative(self, path: str) -> str:
        return path.removeprefix(f"{self.root}/")


def _put_on_disk(path: Path) -> None:
    """Wait until a file, or the list of a folder's files, is on the disk itself."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
