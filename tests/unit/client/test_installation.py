"""The client installs alone, and its documented programs run."""

import re
import shutil
import signal
import subprocess
import sys
import tomllib
from importlib.metadata import distribution
from pathlib import Path

import pytest

import broker_client
from broker_project.stack.load.wait import PATIENCE_SECONDS
from tests.support.mailbox_server import MAILBOX_TOKEN, PlayedMailbox

FOLDER = Path(broker_client.__file__).parent
PROJECT = tomllib.loads((FOLDER / "pyproject.toml").read_text())["project"]
ITS_OWN = ["requests", "urllib3", "certifi", "idna", "charset-normalizer"]
"""What it asks for, with what that asks for."""

ROOT = Path(__file__).parents[3]
READING, CALLING = re.findall(
    r"```python\n(.+?)```", (ROOT / "docs" / "how-to" / "use-the-mailbox-client.md").read_text(), re.DOTALL
)


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


def started(program: str, played: PlayedMailbox) -> subprocess.Popen[str]:
    told = program.replace("http://127.0.0.1:8000", played.url).replace("brk_…", MAILBOX_TOKEN)
    return subprocess.Popen([sys.executable, "-c", told], cwd=ROOT, stderr=subprocess.PIPE, text=True)


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGINT])
def test_the_reader_ends_without_a_word_when_it_is_told_to(played: PlayedMailbox, end: signal.Signals) -> None:
    played.put(b"{}")
    with started(READING, played) as process:
        played.wait_for(lambda: played.acknowledged == [1])
        process.send_signal(end)
        played.end()
        _, errors = process.communicate(timeout=PATIENCE_SECONDS)

    assert (process.returncode, errors) == (0, "")


@pytest.mark.parametrize("bodies", [[], [b"1", b"2"]])
def test_the_calls_one_by_one_do_what_there_is_to_do(played: PlayedMailbox, bodies: list[bytes]) -> None:
    played.put(*bodies)
    played.end()
    with started(CALLING, played) as process:
        _, errors = process.communicate(timeout=PATIENCE_SECONDS)

    assert (process.returncode, errors) == (0, "")
    assert played.acknowledged == [number for number, _ in enumerate(bodies, start=1)]
