"""Create the project's environment with only CPython 3.11, then run the command in it.

This file is run by path before any dependency is installed, so it imports only the standard library.
"""

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NoReturn

ROOT = Path(__file__).resolve().parents[2]
STATE = ROOT / ".broker"
TOOL = STATE / "uv"
ENVIRONMENT = STATE / "env"
SEMGREP = STATE / "semgrep"
"""Its requirements conflict with those of the project. Only the full test command needs it."""

LOCKS = ROOT / "requirements"
STAMP = "complete.json"
HEARTBEAT_SECONDS = 10.0
"""A long step reports at this interval that it is still running."""
START_HEARTBEAT_SECONDS = 3.0
"""A start reports after this time what it waits for: it takes seconds, and somebody watches."""

CA_BUNDLES = ("/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt")
"""Certificates of Linux distributions, for a pip that does not use them by itself."""

FOREIGN_VARIABLES = ("PYTHONHOME", "PYTHONPATH", "VIRTUAL_ENV", "PIP_USER", "PIP_TARGET", "PIP_REQUIRE_VIRTUALENV")
"""Variables of other environments, which would redirect an installation."""

COMMANDS = {
    "demo": ("[--exit]", "start everything, send sample events, show what arrived; --exit: then stop"),
    "up": ("", "start the whole stack until Ctrl-C; the next start has the same data"),
    "manage": ("COMMAND...", "run manage.py with the stack's settings and servers; ./broker manage help: its commands"),
    "test": ("[ARGS...]", "run all checks and tests, or only pytest with ARGS; --fresh-seeds: with new random inputs"),
    "faults": (
        "[CASE...]",
        "break a running broker, check the result; --list: the cases; --json FILE --markdown FILE --seconds N --seed N",
    ),
    "histories": (
        "[--seed S]",
        "check 5,000 random histories of workers that crash; --seed S: only one; --seeds N --from S: others",
    ),
    "bench": (
        "[SCENARIO...]",
        "measure the broker; --list: the scenarios; --json FILE --seconds N --minutes N --rate N --attempts N",
    ),
    "sizing": (
        "[FILE]",
        "say what machines a load needs, by measured costs: --events N... --fan-out N --body BYTES --days N --batches",
    ),
    "audit": ("[ARGS...]", "check the locked packages for known vulnerabilities; ARGS go to pip-audit"),
    "counts": ("[--places]", "count modules, lines and functions beside their limits; --places: what exceeds them"),
    "model": ("", "check the model of a line in every order of its steps; needs spin, gcc and libc6-dev"),
    "trace": ("", "follow one TOPIC delivery through a worker; print its files, and the functions that get an answer"),
    "screenshots": ("", "take the pictures of docs/images from the last demo; needs Debian's package chromium"),
    "lock": ("", "compile requirements/ from pyproject.toml"),
    "help": ("[COMMAND]", "show this list, or one command"),
}
"""Arguments and purpose of each command; those that users need first."""

PASS_ARGUMENTS = {"test", "manage", "bench", "sizing", "faults", "histories", "audit"}
"""Commands that accept any arguments."""

NEED_DEVELOPMENT = {"test", "faults", "histories", "audit", "screenshots"}
"""Commands that need the packages of the development lock."""

HELP_WORDS = {"help", "-h", "--help"}
HELP_WIDTH = 118


def say(text: str) -> None:
    """Print a progress message."""
    print(f"broker: {text}", file=sys.stderr, flush=True)


@contextlib.contextmanager
def heartbeat(say: Callable[[str], None], what: Callable[[], str], seconds: float) -> Iterator[None]:
    """While the body runs, say what takes so long, and for how long it has; less often as time goes on."""
    started, is_over = time.monotonic(), threading.Event()

    def beat() -> None:
        pause = seconds
        while not is_over.wait(pause):
            say(f"... still {what()} after {time.monotonic() - started:.0f} s")
            pause = min(2 * pause, HEARTBEAT_SECONDS)

    beating = threading.Thread(target=beat, daemon=True)
    beating.start()
    try:
        yield
    finally:
        is_over.set()
        beating.join()


def fail(text: str) -> NoReturn:
    """Print a reason and exit with status 1."""
    say(text)
    sys.exit(1)


def usage(command: str) -> str:
    """Return the usage of a command."""
    return f"./broker {command} {COMMANDS[command][0]}".rstrip()


def help_text(*commands: str) -> str:
    """Return the help of each command, with the usage on the left."""
    layout = textwrap.TextWrapper(HELP_WIDTH, subsequent_indent=30 * " ", break_on_hyphens=False)
    return "".join(layout.fill(f"{usage(command):<29} {COMMANDS[command][1]}") + "\n" for command in commands)


def commands_to_explain(command: str, arguments: Sequence[str]) -> Sequence[str]:
    """Return the commands whose help a command line asks for; with PASS_ARGUMENTS only the first argument counts."""
    if command in HELP_WORDS:
        return [known for known in COMMANDS if known in arguments] or [*COMMANDS]
    asking = arguments[:1] if command in PASS_ARGUMENTS else arguments
    return [command] if command in COMMANDS and {"-h", "--help"}.intersection(asking) else []


def mistake(command: str, arguments: Sequence[str]) -> str:
    """Return what is wrong with a command line; empty if nothing is."""
    if command not in COMMANDS:
        return f"there is no command {command!r}; ./broker help lists them"
    unknown = [word for word in arguments if word != COMMANDS[command][0].strip("[]")]
    if command not in PASS_ARGUMENTS and unknown:
        return f"{command} does not take {unknown[0]!r}; usage: {usage(command)}"
    return ""


def tool_variables() -> dict[str, str]:
    """Return the variables for pip and uv, with caches in the state folder if the home folder is not writable."""
    variables = {name: value for name, value in os.environ.items() if name not in FOREIGN_VARIABLES}
    home = variables.get("HOME", "")
    if not (home and Path(home).is_dir() and os.access(home, os.W_OK)):
        variables |= {"HOME": str(STATE / "home"), "XDG_CACHE_HOME": str(STATE / "home" / "cache")}
        (STATE / "home" / "cache").mkdir(parents=True, exist_ok=True)
    return variables


def run(*command: str | Path) -> str | None:
    """Run a command; return its output if it failed, else None."""
    process = subprocess.Popen(  # noqa: S603 - our own command
        command,
        env=tool_variables(),
        cwd=ROOT,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        close_fds=False,  # it keeps the set-up lock if this process is killed
    )
    with heartbeat(say, lambda: "running", HEARTBEAT_SECONDS):
        output, _ = process.communicate()
    return None if process.returncode == 0 else output.strip() or f"exit status {process.returncode}"


def run_trusting_system(*command: str | Path, again: list[list[str]]) -> str | None:
    """Run a command that downloads; on a certificate error retry with each of the arguments in `again`."""
    problem = run(*command)
    for arguments in again:
        if problem is None or "certificate" not in problem.lower():
            break
        say(f"the certificate was not accepted: trying again with {' '.join(arguments)}")
        problem = run(*command, *arguments)
    return problem


def digest(lock: str) -> str:
    """Return the hash of a lock, which a complete installation has in its stamp."""
    return hashlib.sha256((LOCKS / lock).read_bytes()).hexdigest()


def stamp_of(folder: Path) -> dict[str, str]:
    """Return the lock that is completely installed in a folder, as name and digest; empty if none is."""
    try:
        return dict(json.loads((folder / STAMP).read_text()))
    except (OSError, ValueError):
        return {}


def install_tool() -> str | None:
    """Install uv; return the error, if any."""
    shutil.rmtree(TOOL, ignore_errors=True)
    again = [["--cert", bundle] for bundle in CA_BUNDLES if Path(bundle).exists()]
    install = ("-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--require-hashes")
    problem = run(sys.executable, "-m", "venv", TOOL)
    if problem is None:
        return run_trusting_system(TOOL / "bin" / "python", *install, "-r", LOCKS / "uv.txt", again=again)
    shutil.rmtree(TOOL, ignore_errors=True)
    if run(sys.executable, "-m", "pip", "--version") is None:
        target = ("--target", TOOL, "-r", LOCKS / "uv.txt")
        return run_trusting_system(sys.executable, *install, *target, again=again)
    return f"{problem}\n{sys.executable} has neither venv nor pip. On Debian: apt-get install python3.11-venv"


def tool() -> Path:
    """Return the path of uv, installing it if needed."""
    wanted = {"uv.txt": digest("uv.txt")}
    if stamp_of(TOOL) != wanted or not os.access(TOOL / "bin" / "uv", os.X_OK):
        say("installing uv, the package installer ...")
        problem = install_tool()
        if problem:
            fail(f"uv could not be installed:\n{problem}")
        (TOOL / STAMP).write_text(json.dumps(wanted))
    return TOOL / "bin" / "uv"


def is_complete(environment: Path, lock: str) -> bool:
    """Tell whether an environment has exactly this lock installed and is executable for this user."""
    return stamp_of(environment) == {lock: digest(lock)} and os.access(environment / "bin" / "python", os.X_OK)


def install_environment(environment: Path, lock: str) -> None:
    """Install a lock into an environment. An interrupted installation starts over."""
    uv, started = tool(), time.monotonic()
    if not stamp_of(environment) or not os.access(environment / "bin" / "python", os.X_OK):
        problem = run(uv, "venv", "--quiet", "--clear", "--no-project", "--python", sys.executable, environment)
        if problem:
            fail(f"the environment could not be created:\n{problem}")
    (environment / STAMP).unlink(missing_ok=True)
    say(f"installing the packages of requirements/{lock}, at most 1.2 GB on disk ...")
    sync = (uv, "pip", "sync", "--require-hashes", "--compile-bytecode", "--python", environment / "bin" / "python")
    problem = run_trusting_system(*sync, LOCKS / lock, again=[["--system-certs"]])
    if problem:
        fail(f"the packages could not be installed:\n{problem}")
    (environment / STAMP).write_text(json.dumps({lock: digest(lock)}))
    say(f"the environment is complete ({time.monotonic() - started:.0f} s)")


def compile_locks() -> None:
    """Compile the locks from pyproject.toml. Versions that still fit stay."""
    compile_ = (tool(), "pip", "compile", "--generate-hashes", "--python-version", "3.11", "--quiet")
    named = ("--custom-compile-command", "./broker lock", "-o")
    for lock, *sources in (
        ("requirements/runtime.txt", "pyproject.toml"),
        ("requirements/development.txt", "pyproject.toml", "--group", "dev", "-c", "requirements/runtime.txt"),
        ("requirements/semgrep.txt", "--group", "semgrep"),
    ):
        say(f"compiling {lock} ...")
        problem = run_trusting_system(*compile_, *named, lock, *sources, again=[["--system-certs"]])
        if problem:
            fail(f"the lock could not be compiled:\n{problem}")


def environments(command: str, arguments: Sequence[str]) -> dict[Path, str]:
    """Return the environments that a command needs, each with its lock."""
    has_development = "development.txt" in stamp_of(ENVIRONMENT)
    wanted = {ENVIRONMENT: "development.txt" if command in NEED_DEVELOPMENT or has_development else "runtime.txt"}
    return wanted | ({SEMGREP: "semgrep.txt"} if command == "test" and set(arguments) <= {"--fresh-seeds"} else {})


@contextlib.contextmanager
def only_one_at_a_time() -> Iterator[None]:
    """Hold the lock for set-up in the state folder."""
    try:
        STATE.mkdir(exist_ok=True)
        lock = (STATE / "setup.lock").open("w")
    except OSError as problem:
        fail(f"{problem.filename} cannot be written ({problem.strerror}): run as its owner, or use your own clone")
    with lock:
        os.set_inheritable(lock.fileno(), True)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("waiting for another ./broker that is setting up the environment ...")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def main(command: str = "help", *arguments: str) -> None:
    """Install what the command needs, then replace this process with the command."""
    if explained := commands_to_explain(command, arguments):
        print(help_text(*explained), end="")
        return
    problem = mistake(command, arguments)
    if problem:
        say(problem)
        sys.exit(2)
    with only_one_at_a_time():
        if command == "lock":
            compile_locks()
            return
        for environment, lock in environments(command, arguments).items():
            if not is_complete(environment, lock):
                install_environment(environment, lock)
    python = str(ENVIRONMENT / "bin" / "python")
    variables = {name: value for name, value in os.environ.items() if name not in FOREIGN_VARIABLES}
    stack = [python, "-P", "-m", "broker_project.stack", command, *arguments]
    os.execve(python, stack, variables | {"PYTHONPATH": str(ROOT)})  # noqa: S606 - no shell


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except KeyboardInterrupt:
        fail("interrupted; the next start continues")
