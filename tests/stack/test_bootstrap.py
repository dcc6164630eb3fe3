"""The environment is made once, and again when its lock changes or its making was interrupted."""

import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.command import main as bench
from benchmarks.sizing import main as sizing
from broker_project.stack import bootstrap
from broker_project.stack.folders import ROOT
from tests.faults.__main__ import faults
from tests.histories.__main__ import histories


@pytest.fixture
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """A bootstrap in a folder of its own whose commands are recorded, and make what they would make."""
    monkeypatch.setattr(bootstrap, "STATE", tmp_path)
    monkeypatch.setattr(bootstrap, "ENVIRONMENT", tmp_path / "env")
    monkeypatch.setattr(bootstrap, "tool", lambda: Path("/uv"))
    recorded: list[list[str]] = []

    def run(*command: str | Path) -> str | None:
        recorded.append([str(word) for word in command])
        if command[1] == "venv":
            python = tmp_path / "env" / "bin" / "python"
            python.parent.mkdir(parents=True, exist_ok=True)
            python.symlink_to("/bin/true")
        return None

    monkeypatch.setattr(bootstrap, "run", run)
    return recorded


def steps(commands: list[list[str]]) -> list[str]:
    return [" ".join(command[1:3]).removesuffix(" --quiet") for command in commands]


def test_environment_is_installed_and_updated_with_its_lock(commands: list[list[str]]) -> None:
    for lock in ("runtime.txt", "development.txt"):
        assert not bootstrap.is_complete(bootstrap.ENVIRONMENT, lock)
        bootstrap.install_environment(bootstrap.ENVIRONMENT, lock)
        assert bootstrap.is_complete(bootstrap.ENVIRONMENT, lock)
    assert steps(commands) == ["venv", "pip sync", "pip sync"]


@pytest.mark.parametrize("left", ["", '{"runtime.txt": '])
def test_interrupted_installation_starts_over(commands: list[list[str]], left: str) -> None:
    bootstrap.install_environment(bootstrap.ENVIRONMENT, "runtime.txt")
    (bootstrap.ENVIRONMENT / bootstrap.STAMP).write_text(left)
    (bootstrap.ENVIRONMENT / "bin" / "python").unlink()
    assert not bootstrap.is_complete(bootstrap.ENVIRONMENT, "runtime.txt")
    bootstrap.install_environment(bootstrap.ENVIRONMENT, "runtime.txt")
    assert steps(commands) == ["venv", "pip sync"] * 2


@pytest.mark.parametrize(
    ("words", "locks"),
    [
        (("up",), {"env": "runtime.txt"}),
        (("test", "tests/unit"), {"env": "development.txt"}),
        (("test",), {"env": "development.txt", "semgrep": "semgrep.txt"}),
        (("test", "--fresh-seeds"), {"env": "development.txt", "semgrep": "semgrep.txt"}),
    ],
)
def test_only_the_full_test_command_installs_semgrep(
    words: tuple[str, ...], locks: dict[str, str], commands: list[list[str]]
) -> None:
    command, *arguments = words
    wanted = bootstrap.environments(command, arguments)
    assert ({folder.name: lock for folder, lock in wanted.items()}, commands) == (locks, [])


@pytest.mark.parametrize(
    ("problem", "calls"),
    [
        ("invalid peer certificate: UnknownIssuer", [("uv", "sync"), ("uv", "sync", "--system-certs")]),
        ("no such package", [("uv", "sync")]),
    ],
)
def test_only_certificate_errors_are_retried_with_system_certificates(
    problem: str, calls: list[tuple[str, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str | Path, ...]] = []

    def run(*command: str | Path) -> str | None:
        asked.append(command)
        return problem if len(asked) == 1 else None

    monkeypatch.setattr(bootstrap, "run", run)
    bootstrap.run_trusting_system("uv", "sync", again=[["--system-certs"], ["--never"]])
    assert asked == calls


@pytest.mark.parametrize("home", [None, "", "/nonexistent"])
def test_caches_stay_in_the_state_folder_without_a_writable_home(
    home: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bootstrap, "STATE", tmp_path)
    monkeypatch.delenv("HOME", raising=False) if home is None else monkeypatch.setenv("HOME", home)
    variables = bootstrap.tool_variables()
    assert variables["HOME"] == str(tmp_path / "home")
    assert Path(variables["XDG_CACHE_HOME"]).is_dir()


def test_a_folder_that_cannot_be_written_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bootstrap, "STATE", Path("/proc/broker"))  # nobody can make it, root neither
    with pytest.raises(SystemExit), bootstrap.only_one_at_a_time():
        pass
    assert "/proc/broker cannot be written (No such file or directory): run as its owner" in capsys.readouterr().err


def test_locks_name_no_registry() -> None:
    for lock in sorted((ROOT / "requirements").iterdir()):
        text = lock.read_text()
        assert "--hash=sha256:" in text
        assert "://" not in text
        assert "--index" not in text


def ask(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([ROOT / "broker", *words], env={}, capture_output=True, text=True, check=False)


def test_help_needs_no_environment() -> None:
    assert ask("help").stdout == bootstrap.help_text(*bootstrap.COMMANDS)
    assert ask("help", "up").stdout == bootstrap.help_text("up")


@pytest.mark.parametrize("command", [*bootstrap.COMMANDS])
def test_every_command_has_help(command: str) -> None:
    answer = ask(command, "--help")
    assert (answer.returncode, answer.stderr) == (0, "")
    assert bootstrap.help_text(command) in answer.stdout


@pytest.mark.parametrize(
    ("command", "program"),
    [("bench", bench), ("faults", faults), ("histories", histories), ("sizing", sizing)],
)
def test_help_names_every_option(command: str, program: Callable[..., int], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match=r"^0$"):
        program("--help")
    options = set(re.findall(r"--[a-z-]+", capsys.readouterr().out)) - {"--help"}
    known = set(re.findall(r"--[a-z-]+", bootstrap.help_text(command)))  # which `./broker COMMAND --help` prints
    assert options - {"--json"} <= known <= options


@pytest.mark.parametrize("words", [("up", "now"), ("demo", "--exit", "--fast"), ("lock", "it"), ("start",)])
def test_unknown_command_or_option_is_reported_in_one_line(words: tuple[str, ...]) -> None:
    answer = ask(*words)
    assert (answer.returncode, answer.stdout, answer.stderr.count("\n")) == (2, "", 1)
    assert "./broker" in answer.stderr


@pytest.mark.parametrize(
    ("on_path", "system", "chosen"),
    [
        pytest.param("fast", "fast", "on path", id="the first that is optimized"),
        pytest.param("fits", "fast", "system", id="not the first, if a later one is faster"),
        pytest.param("fits", "fits", "on path", id="the first, if none is optimized"),
        pytest.param("no", "fits", "system", id="another version is passed over"),
    ],
)
def test_optimized_python_is_preferred(tmp_path: Path, on_path: str, system: str, chosen: str) -> None:
    interpreters = {"python3.11": (on_path, "on path"), "python3": ("no", ""), "system": (system, "system")}
    for name, (kind, words) in interpreters.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n[ $1 = -c ] && echo {kind} || echo {words}\n")
        (tmp_path / name).chmod(0o755)
    answer = way_in(tmp_path, system=tmp_path / "system")
    assert (answer.stdout, answer.stderr) == (f"{chosen}\n", "")


def test_other_python_versions_are_refused(tmp_path: Path) -> None:
    for name in ("python3.11", "python3"):
        (tmp_path / name).write_text("#!/bin/sh\nexit 1\n")
        (tmp_path / name).chmod(0o755)
    answer = way_in(tmp_path, system=tmp_path / "none")
    assert (answer.returncode, "no CPython 3.11 found" in answer.stderr) == (1, True)


def way_in(first_on_path: Path, *, system: Path) -> subprocess.CompletedProcess[str]:
    """Run `broker` where `python3.11` and `python3` are those of a folder, and the system's is `system`."""
    source = (ROOT / "broker").read_text().replace("/usr/local/bin/python3.11", "")
    return subprocess.run(
        ["/bin/sh", "-c", source.replace("/usr/bin/python3.11", str(system)), "broker"],
        env={"PATH": f"{first_on_path}:/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )
