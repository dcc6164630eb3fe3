"""Where things are: the repository, the state folder, and what one stack keeps in its own folder."""

import shutil
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
STATE = ROOT / ".broker"
"""Everything that is made at run time; ignored by git, may be deleted whenever nothing runs."""


@dataclass(frozen=True, slots=True)
class StackFolder:
    """The folder of one stack: `.broker` itself, the demo's, or that of a test run."""

    path: Path

    @property
    def logs(self) -> Path:
        """One file a process."""
        return self.made("logs")

    @property
    def lock(self) -> Path:
        """Locked while the stack runs; holds its process id."""
        return self.made() / "stack.lock"

    @property
    def settings(self) -> Path:
        """Ports and secrets, chosen once and kept; readable by the owner only."""
        return self.made() / "stack.json"

    def forget_stores(self) -> None:
        """Delete what PostgreSQL, Redis and Spark have kept, but neither ports nor secrets."""
        for name in ("postgres", "redis", "lake"):
            shutil.rmtree(self.path / name, ignore_errors=True)

    def made(self, name: str = "") -> Path:
        """Return a folder in it, made if it is not there."""
        folder = self.path / name
        folder.mkdir(parents=True, exist_ok=True)
        return folder
