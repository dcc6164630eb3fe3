"""The mailbox's client by itself: what it is installed with is all that it needs."""

import shutil
import subprocess
import sys
import tomllib
from importlib.metadata import distribution
from pathlib import Path

import broker_client

FOLDER = Path(broker_client.__file__).parent
PROJECT = tomllib.loads((FOLDER / "pyproject.toml").read_text())["project"]
ITS_OWN = ["requests", "urllib3", "certifi", "idna", "charset-normalizer"]
"""What it asks for, with what that asks for."""


def test_it_asks_for_requests_and_nothing_else() -> None:
    assert [name.partition(">=")[0] for name in PROJECT["dependencies"]] == ["requests"]
    assert PROJECT["requires-python"] == ">=3.11"
    assert (FOLDER / "py.typed").exists()


def test_it_runs_where_nothing_else_is_installed(tmp_path: Path) -> None:
    shutil.copytree(FOLDER, tmp_path / "broker_client")
    for name in ITS_OWN:
        found = distribution(name)
        for folder in {file.parts[0] for file in found.files or [] if file.suffix == ".py"}:
            (tmp_path / folder).symlink_to(Path(str(found.locate_file(folder))))

    told = f"import sys; sys.path.append({str(tmp_path)!r}); import broker_client; print(broker_client.__file__)"
    ran = subprocess.run([sys.executable, "-I", "-S", "-c", told], capture_output=True, text=True, check=True)

    assert ran.stdout.strip() == str(tmp_path / "broker_client" / "__init__.py")
