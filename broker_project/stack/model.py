"""`./broker model`: check `delivery/worker/line.pml`, the model of a line, with spin.

The model has to pass. Each mistake that can be built into it has to be found: otherwise passing would show nothing.
"""

import os
import re
import shutil
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from broker_project.core.subprocesses import die_with
from broker_project.stack.bootstrap import say
from broker_project.stack.folders import ROOT, STATE, StackError, StackFolder, locked

MODEL: Final = ROOT / "delivery" / "worker" / "line.pml"
FOLDER: Final = STATE / "model"
MEMORY_MB: Final = 8_000
"""A search that needs more memory ends, and fails. The largest, `progress-keys`, needs 6,300 for 68 million states."""

NOTHING: Final = {"CRASHES": 0, "LEASES_LOST": 0, "UNHEARD": 0, "JUMPS": 0, "RESTORES": 0}


def defined(*further: str, **maximums: int) -> Sequence[str]:
    """Return the definitions of a model in which so many of each fault happen."""
    return [*(f"MAX_{name}={count}" for name, count in {**NOTHING, **maximums}.items()), *further]


FAULTS: Final = defined("SWEEP", CRASHES=1, LEASES_LOST=1, UNHEARD=1)
HINTS_ONLY: Final = defined()
CLOCK: Final = defined("SWEEP", CRASHES=1, JUMPS=2)
RESTORE: Final = defined("SWEEP", RESTORES=1)
KEYS: Final = defined("SWEEP", "KEYED", CRASHES=1, LEASES_LOST=1, UNHEARD=1)


@dataclass(frozen=True, slots=True)
class ModelCheck:
    """One search of all that can happen in the model: for a failed assertion, or for a run that delivers too little."""

    name: str
    definitions: Sequence[str]
    finds: str = ""
    """What spin has to find; empty if the model is right."""
    is_progress: bool = False


MISTAKES: Final = (
    *("NO_FENCE", "NO_MARK", "NO_FLAG", "CLAIMS_LEASED", "NO_ABORT", "RENEWS_UNFENCED", "FORGETS_UNHEARD"),
    *("KEEPS_UNHEARD", "UNMARKS_UNFENCED", "UNMARKS_FIRST"),
)
LOST_HINTS: Final = ("DISOWNS_FIRST", "OWNS_LATE")
WRONG, STUCK = "assertion violated", "acceptance cycle"
CHECKS: Final = (
    *(ModelCheck(mistake, FAULTS, WRONG) for mistake in MISTAKES),
    *(ModelCheck(mistake, HINTS_ONLY, STUCK, is_progress=True) for mistake in LOST_HINTS),
    ModelCheck("BELIEVES_JUMPS", CLOCK, WRONG),
    ModelCheck("TRUSTS_FAR_LEASES", CLOCK, STUCK, is_progress=True),
    ModelCheck("RESTORES_UNFLAGGED", RESTORE, WRONG),
    ModelCheck("REUSES_IDS", RESTORE, WRONG),
    ModelCheck("FORGETS_HOLDS", KEYS, WRONG),
    ModelCheck("HOLDS_ALL_KEYS", KEYS, STUCK, is_progress=True),
    ModelCheck("progress-by-hints", HINTS_ONLY, is_progress=True),
    *(
        ModelCheck(f"{name}{suffix}", definitions, is_progress=is_progress)
        for suffix, definitions in {"": FAULTS, "-clock": CLOCK, "-restore": RESTORE, "-keys": KEYS}.items()
        for name, is_progress in {"safety": False, "progress": True}.items()
    ),
)
"""The mistakes first: they take seconds. Each is named as in the model."""


def check_model() -> int:
    """Run all checks, with one line of output for each; return 1 if any failed."""
    if not (shutil.which("spin") and shutil.which("gcc")):
        raise StackError("./broker model needs spin and gcc. On Debian: apt-get install spin gcc libc6-dev")
    say(f"checking {MODEL.relative_to(ROOT)}, which takes ten minutes and up to 6.3 GB of memory ...")
    with locked(StackFolder(FOLDER).lock):
        return 0 if all([run_check(check) for check in CHECKS]) else 1  # noqa: C419 - all of them, also after a failure


def run_check(check: ModelCheck) -> bool:
    """Search the model, print the result, and tell whether it is as it should be."""
    folder, started = FOLDER / check.name, time.monotonic()
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    definitions = [f"-D{name}" for name in (*check.definitions, *[check.name] * bool(check.finds))]
    kind = () if check.is_progress else ("-DSAFETY", "-DNOCLAIM")
    _output(folder, "spin", *definitions, "-a", str(MODEL))
    _output(folder, "gcc", "-w", "-O2", f"-DMEMLIM={MEMORY_MB}", "-DCOLLAPSE", *kind, "-o", "pan", "pan.c")
    output = _output(folder, str(folder / "pan"), "-b", *["-a"] * check.is_progress)
    is_fine, states, result = judge(check, output)
    mark, seconds = "ok    " if is_fine else "FAILED", time.monotonic() - started
    print(f"{mark} {seconds:6.1f} s {states:>12,} states  {check.name}: {result}", flush=True)
    if not is_fine and any(folder.glob("*.trail")):
        say(f"its steps: cd {folder} && spin {' '.join(definitions)} -p -g -k {MODEL.name}.trail {MODEL}")
    return is_fine


def judge(check: ModelCheck, output: str) -> tuple[bool, int, str]:
    """Return whether the output of a search is as it should be, how many states it found, and what was wrong."""
    found = re.search(r"^pan:\d+: +(.+)", output, re.M)
    stored = re.search(r"^ *([\d.e+]+) states, stored", output, re.M)
    is_whole = "errors: 0\n" in output and "Search not completed" not in output
    ended = f"it needs more than {MEMORY_MB:,} MB of memory" if "MEMLIM" in output else "the search is not complete"
    result = found[1] if found else "nothing wrong in any order" if is_whole else ended
    return check.finds in result if check.finds else is_whole, int(float(stored[1])) if stored else 0, result


def _output(folder: Path, *command: str) -> str:
    """Run a command in a folder and return its output; raise `StackError` with it if the command fails."""
    lines = []
    with subprocess.Popen(  # noqa: S603 - our own command
        command,
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        preexec_fn=partial(die_with, os.getpid()),  # noqa: PLW1509 - a few system calls
    ) as process:
        for line in process.stdout or ():
            lines.append(line)
            states = re.match(r"Depth= .* States= *(\S+)", line)
            if states and float(states[1]) % 5e6 == 0:  # spin tells of each million
                say(f"... {folder.name}: {float(states[1]):,.0f} states")
    if process.returncode:
        raise StackError(f"{command[0]} failed:\n{''.join(lines)}")
    return "".join(lines)
