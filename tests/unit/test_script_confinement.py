"""What somebody could do who has broken out of the JavaScript engine: compute, answer, end (behaviour 8.3)."""

import os
import subprocess
import sys

import pytest
from django.core.checks import run_checks

from broker_project.stack.folders import ROOT
from subscriptions import checks
from subscriptions.scripting import runner
from subscriptions.scripting.seccomp import ALLOWED, ARCHITECTURES, is_possible
from tests.script_running import run, running

MACHINE = os.uname().machine
LATER_THAN_ANY = 600
"""Linux numbers its calls up to here, and leaves gaps."""
OTHER_ABI = 0x4000_0000
"""Where x86_64 has its calls a second time, with pointers of 32 bits."""
OF_NO_USE = {335, 336} if MACHINE == "x86_64" else set()
"""Linux lets them past every filter: the ends of its own probes, which do nothing for who was not sent there by one."""
PROGRAM = """
import ctypes, os, resource
from subscriptions.scripting.child import PR_SET_NO_NEW_PRIVS
from subscriptions import checks
from subscriptions.scripting import runner
from subscriptions.scripting.seccomp import confine

libc = ctypes.CDLL(None)
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)


def end_of(*call):
    pid = os.fork()
    if not pid:
        confine()
        libc.syscall(*map(ctypes.c_long, call))
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


"""
ENDED = "-31"
"""By SIGSYS."""


def told(story: str) -> str:
    """Return what a process prints that runs such a story."""
    done = subprocess.run([sys.executable, "-c", PROGRAM + story], capture_output=True, text=True, check=True, cwd=ROOT)
    return done.stdout.strip()


def test_this_kernel_can_confine() -> None:
    assert MACHINE in ARCHITECTURES
    assert is_possible()


@pytest.mark.behaviour("8.3")
def test_every_other_system_call_ends_the_process() -> None:
    allowed = {call.number(MACHINE) for call in ALLOWED.values()} | OF_NO_USE
    others = [number for number in range(LATER_THAN_ANY) if number not in allowed]
    if MACHINE == "x86_64":
        others += [OTHER_ABI + number for number in range(3)]
    assert told(f"print({{end_of(number, 0, 0, 0, 0, 0, 0) for number in {others}}})") == f"{{{ENDED}}}"


@pytest.mark.behaviour("8.3")
@pytest.mark.parametrize(
    ("name", "right", "wrong"),
    [
        ("mmap", (0, 4096, 3, 0x22, -1, 0), (0, 4096, 7, 0x22, -1, 0)),  # memory that can be executed
        ("mmap", (0, 4096, 3, 0x22, -1, 0), (0, 4096, 3, 0x21, -1, 0)),  # memory that no limit counts
        ("mprotect", (0, 0, 3), (0, 0, 5)),
        ("recvfrom", (0, 0, 0, 0x40, 0, 0), (3, 0, 0, 0x40, 0, 0)),
        ("sendto", (0, 0, 0, 0x40, 0, 0), (1, 0, 0, 0x40, 0, 0)),
        ("prlimit64", (0, 0, 0, 0), (1, 0, 0, 0)),  # somebody else's limits
        ("prlimit64", (0, 0, 0, 0), (0, 2, 0, 0)),  # the limit of memory
    ],
)
def test_a_call_may_do_only_what_scripts_need_of_it(name: str, right: tuple[int, ...], wrong: tuple[int, ...]) -> None:
    number = ALLOWED[name].number(MACHINE)
    assert told(f"print(end_of({number}, *{right}), end_of({number}, *{wrong}))") == f"0 {ENDED}"


@pytest.mark.parametrize("machine", ARCHITECTURES)
def test_every_call_has_a_number_of_its_own(machine: str) -> None:
    assert len({call.number(machine) for call in ALLOWED.values()}) == len(ALLOWED)


@pytest.mark.parametrize("can", [True, False])
def test_the_check_before_deployment_warns_of_a_kernel_that_cannot(monkeypatch: pytest.MonkeyPatch, can: bool) -> None:
    monkeypatch.setattr(checks, "is_possible", lambda: can)
    warnings = run_checks(tags=["security"], include_deployment_checks=True)
    assert (checks.NOT_CONFINED in warnings) is not can


def test_workers_say_once_that_the_kernel_cannot(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(runner, "is_possible", lambda: False)
    runner.warn_if_open.cache_clear()
    with running() as one:
        run(one, "")
        run(one, "while (1);")
    assert caplog.text.count("scripts.not_confined") == 1
