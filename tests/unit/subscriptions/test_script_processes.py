"""Processes that run scripts: confined, shared fairly, replaced (contract 8.3)."""

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from django.core.checks import run_checks

from broker_project.stack.folders import ROOT
from broker_project.stack.load.wait import PATIENCE_SECONDS, wait_until
from subscriptions import apps
from subscriptions.scripting import process, runner
from subscriptions.scripting.interpreter import MORE_BYTES
from subscriptions.scripting.jobs import LENGTHS, Failed, Job, Lost, Made, packed
from subscriptions.scripting.process import ScriptProcess
from subscriptions.scripting.seccomp import ALLOWED, ARCHITECTURES, is_possible
from tests.support.scripts import process_ids, run_script, running_scripts, wait_for_results

pytestmark = pytest.mark.behaviour("8.3")

MACHINE = os.uname().machine
LATER_THAN_ANY = 600
"""Linux numbers its calls up to here, and leaves gaps."""
OTHER_ABI = 0x4000_0000
"""Where x86_64 has its calls a second time, with pointers of 32 bits."""
OF_NO_USE = {335, 336} if MACHINE == "x86_64" else set()
"""Linux lets them past every filter: the ends of its own probes, which do nothing for who was not sent there by one."""
ENDED = "-31"
"""By SIGSYS."""


def test_a_process_cannot_open_files_or_sockets() -> None:
    with running_scripts() as runner:
        run_script(runner, "")
        (pid,) = process_ids(runner)
        assert_closed(pid)


def assert_closed(pid: int) -> None:
    limits = Path(f"/proc/{pid}/limits").read_text().splitlines()
    values = {line[:26].strip(): line[26:].split()[:2] for line in limits[1:]}
    assert values["Max open files"] == values["Max file size"] == values["Max core file size"] == ["0", "0"]
    status = dict(line.split(":\t", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    assert (status["NoNewPrivs"], status["Seccomp"], status["Threads"]) == ("1", "2", "1")
    assert Path(f"/proc/{pid}/environ").read_bytes().count(b"=") == 3
    opened = {int(one.name): str(one.readlink()).split(":")[0] for one in Path(f"/proc/{pid}/fd").iterdir()}
    assert opened == {0: "socket", 1: "/dev/null", 2: "/dev/null"}


def test_processes_have_lower_priority_in_sessions_of_their_own() -> None:
    with running_scripts() as runner:
        run_script(runner, "while (1);")
        assert {one.is_for_slow: niceness_of(one.pid) for one in runner.processes.values()} == {False: 5, True: 5}
        assert [os.getsid(pid) for pid in process_ids(runner)] == process_ids(runner)


def niceness_of(pid: int) -> int:
    """Return how much nicer than this process another is; its session is as nice, where Linux shares by session."""
    own = os.getpriority(os.PRIO_PROCESS, pid) - os.getpriority(os.PRIO_PROCESS, 0)
    group = Path(f"/proc/{pid}/autogroup")
    assert not group.exists() or group.read_text().endswith(f" nice {own}\n")
    return own


def test_reaping_does_not_wait_for_a_process_that_is_still_ending() -> None:
    process = ScriptProcess()
    assert process.reap() is None
    process.hang_up()
    process.wait()
    assert process.reap() == Lost("its process is gone")


@pytest.fixture
def stopping() -> Iterator[None]:
    """Let new sockets have a timeout, as they have in a Celery worker that stops."""
    socket.setdefaulttimeout(5.0)
    yield
    socket.setdefaulttimeout(None)


@pytest.mark.usefixtures("stopping")
def test_scripts_run_in_a_worker_that_stops() -> None:
    with running_scripts() as runner:
        assert run_script(runner, "$outmessage = 'made'") == Made(b"made")
        (pid,) = process_ids(runner)
        (flags,) = re.findall(r"^flags:\t(\d+)", Path(f"/proc/{pid}/fdinfo/0").read_text(), re.MULTILINE)
        assert not int(flags, 8) & os.O_NONBLOCK, "it waits for what is not there yet"


@pytest.mark.parametrize("is_ready", [True, False])
@pytest.mark.parametrize("said", [b"", packed({}, b"")[:-1] + b"x"])
def test_a_process_that_loses_its_connection_is_lost_not_failed(said: bytes, is_ready: bool) -> None:
    process = ScriptProcess()
    if is_ready:
        wait_until(process.receive)
    process._out = said
    process.send()
    process._socket.shutdown(socket.SHUT_WR if is_ready else socket.SHUT_RDWR)
    process.wait()
    process.hang_up()
    assert process.reap() == Lost("its process is gone")


@pytest.mark.usefixtures("unhurried_cpu")
@pytest.mark.parametrize(
    ("end", "seconds", "reason"),
    [(signal.SIGKILL, PATIENCE_SECONDS, "its process is gone"), (signal.SIGSTOP, 2.0, "it took longer than 2 s")],
)
def test_a_script_that_takes_too_long_or_whose_process_is_killed_is_lost(
    monkeypatch: pytest.MonkeyPatch, end: signal.Signals, seconds: float, reason: str
) -> None:
    with running_scripts() as runner:
        run_script(runner, "")
        with monkeypatch.context() as limited:
            limited.setattr(process, "TOTAL_SECONDS", seconds)
            runner.run("it", Job("while (1);"))
            os.kill(process_ids(runner)[0], end)
            assert wait_for_results(runner, 1) == {"it": Lost(reason)}
        assert run_script(runner, "$outmessage = 'next'") == Made(b"next"), "another process takes over"


@pytest.mark.usefixtures("unhurried_cpu")
@pytest.mark.parametrize("end", [signal.SIGSEGV, signal.SIGSYS])
def test_a_script_that_crashes_its_process_has_failed(end: signal.Signals) -> None:
    with running_scripts() as runner:
        run_script(runner, "")
        runner.run("it", Job("while (1);"))
        os.kill(process_ids(runner)[0], end)
        assert wait_for_results(runner, 1) == {"it": Failed(f"it crashed its process ({end.name})")}


TAKEN_OVER = """
import socket
from subscriptions.scripting.jobs import packed
connection = socket.socket(fileno=0)
connection.sendall(packed({}, b""))
connection.recv(1 << 20)
connection.sendall(__SAID__)
connection.recv(1)
"""
HEAD = {"has_body": True, "headers": {}, "param": "", "status": "200"}
DEEP = b"[" * 100_000 + b"]" * 100_000
WRONG: list[dict[str, object]] = [
    {"headers": [1]},
    {"headers": {"X": 1}},
    {"param": 5},
    {"param": "\ud83d"},
    {"status": None},
    {"failed": "\0"},
]


@pytest.fixture
def says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[bytes], None]:
    """Let processes that are started say this to their first job, as if a script had broken out."""

    def say(said: bytes) -> None:
        program = tmp_path / "taken_over.py"
        program.write_text(TAKEN_OVER.replace("__SAID__", repr(said)))
        monkeypatch.setattr(process, "PROGRAM", program)

    return say


@pytest.mark.parametrize(
    "said",
    [
        LENGTHS.pack(len(DEEP), 0) + DEEP,
        packed(HEAD, b"") + packed(HEAD, b"of the next job"),
        *(packed(HEAD | wrong, b"") for wrong in WRONG),
    ],
    ids=range(2 + len(WRONG)),
)
def test_a_process_that_a_script_has_taken_over_is_ended(says: Callable[[bytes], None], said: bytes) -> None:
    says(said)
    with running_scripts() as runner:
        assert run_script(runner, "") == Lost("its process is gone")


def test_a_process_that_speaks_without_being_asked_is_ended(says: Callable[[bytes], None]) -> None:
    says(packed(HEAD, b"of the next job"))
    process = ScriptProcess()
    wait_until(process.receive)
    process._out = b"no job"
    process.send()
    with pytest.raises(EOFError):
        wait_until(process.receive)
    process.hang_up()
    process.wait()


def test_no_process_is_left() -> None:
    with running_scripts(2) as runner:
        for name in range(4):
            runner.run(name, Job("while (1);", owner=name))
        assert len(wait_for_results(runner, 4)) == 4
        known = process_ids(runner)
        assert known
    assert not any(Path(f"/proc/{pid}").exists() for pid in known)


LIVE_AND_LOOP = """
from subscriptions.scripting.jobs import Job
from subscriptions.scripting.runner import ScriptRunner
runner = ScriptRunner(1)
runner.run(1, Job("1"))
while not runner.finished(): pass
runner.run(2, Job("while (1);"))
print([process.pid for process in runner.processes.values()][0], flush=True)
input()
"""


def test_processes_die_with_a_parent_that_is_killed() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", LIVE_AND_LOOP], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout
        pid = int(parent.stdout.readline())
        parent.kill()
    wait_until(lambda: not _runs(pid))


def _runs(pid: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


def test_slow_scripts_do_not_keep_quick_ones_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "CPU_SECONDS", PATIENCE_SECONDS)  # none of the slow ones ends meanwhile
    with running_scripts(2) as runner:
        quick = [Job("$outmessage = 'quick'", owner=number) for number in range(3)]
        for job in quick:
            runner.run(job.owner, job)
        wait_for_results(runner, 3)  # now they are known to be quick
        for number in range(20):
            runner.run(f"slow {number}", Job("while (1);", owner=100 + number))
        for job in quick:
            runner.run(job.owner, job)
        done = wait_for_results(runner, 3)
        assert sum(isinstance(result, Made) for result in done.values()) == 3, "while the slow ones still wait"


def test_a_script_that_becomes_slow_restarts_in_the_slow_lane(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "CPU_SECONDS", PATIENCE_SECONDS)  # however slow the machine is
    with running_scripts(2) as runner:
        for _ in range(2):
            assert run_script(runner, "$outmessage = 'done'", owner=7) == Made(b"done")
        assert not runner.queue.is_slow(7)
        slow = "for (let i = 0; i < 8e6; i++); $outmessage = 'done'"
        assert run_script(runner, slow, owner=7) == Made(b"done")
        assert runner.queue.is_slow(7)


@pytest.mark.usefixtures("unhurried_cpu")
def test_an_owner_whose_process_ends_counts_as_slow() -> None:
    with running_scripts() as runner:
        for _ in range(2):
            run_script(runner, "", owner=7)
        runner.run("it", Job("while (1);", owner=7))
        os.kill(process_ids(runner)[0], signal.SIGKILL)
        assert wait_for_results(runner, 1) == {"it": Lost("its process is gone")}
        assert runner.queue.is_slow(7)


def test_one_process_is_started_at_a_time() -> None:
    with running_scripts(3) as runner:
        for number in range(6):
            runner.run(number, Job("1", owner=number))
        assert len(process_ids(runner)) == 1
        assert runner.patience() == 0, "the next is started at once, in the next look"
        assert len(wait_for_results(runner, 6)) == 6


def test_without_scripts_there_is_nothing_to_do() -> None:
    with running_scripts() as runner:
        assert (runner.finished(), runner.patience(), process_ids(runner)) == ([], None, [])


PROGRAM = """
import ctypes, os, resource
from subscriptions.scripting.interpreter import PR_SET_NO_NEW_PRIVS
from subscriptions import apps
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


def output_of(story: str) -> str:
    """Return what a process prints that runs such a story."""
    done = subprocess.run([sys.executable, "-c", PROGRAM + story], capture_output=True, text=True, check=True, cwd=ROOT)
    return done.stdout.strip()


def test_this_kernel_can_confine() -> None:
    assert MACHINE in ARCHITECTURES
    assert is_possible()


def test_any_other_system_call_ends_the_process() -> None:
    allowed = {getattr(call, MACHINE) for call in ALLOWED.values()} | OF_NO_USE
    others = [number for number in range(LATER_THAN_ANY) if number not in allowed]
    if MACHINE == "x86_64":
        others += [OTHER_ABI + number for number in range(3)]
    assert output_of(f"print({{end_of(number, 0, 0, 0, 0, 0, 0) for number in {others}}})") == f"{{{ENDED}}}"


RIGHT_AND_WRONG: list[tuple[str, tuple[int, ...], tuple[int, ...]]] = [
    ("mmap", (0, 4096, 3, 0x22, -1, 0), (0, 4096, 7, 0x22, -1, 0)),  # memory that can be executed
    ("mprotect", (0, 0, 3), (0, 0, 5)),
    ("recvfrom", (0, 0, 0, 0x40, 0, 0), (3, 0, 0, 0x40, 0, 0)),
    ("sendto", (0, 0, 0, 0x40, 0, 0), (1, 0, 0, 0x40, 0, 0)),
    ("prlimit64", (0, 0, 0, 0), (1, 0, 0, 0)),  # somebody else's limits
    ("prlimit64", (0, 0, 0, 0), (0, 2, 0, 0)),  # the limit of memory
]


def test_system_calls_are_restricted_by_argument() -> None:
    calls = [(getattr(ALLOWED[name], MACHINE), right, wrong) for name, right, wrong in RIGHT_AND_WRONG]
    ends = output_of(f"print([(end_of(n, *right), end_of(n, *wrong)) for n, right, wrong in {calls}])")
    assert ends == str([(0, int(ENDED))] * len(calls))


def test_memory_of_every_kind_is_limited() -> None:
    """Memory of its own, shared, of a stack, or to be read only, which fills page tables."""
    kinds = [(3, 0x22), (3, 0x21), (3, 0x122), (1, 0x22)]
    mmap, too_much = getattr(ALLOWED["mmap"], MACHINE), 2 * MORE_BYTES
    story = f"""
from subscriptions.scripting.interpreter import limit_memory
limit_memory()
libc.syscall.restype = ctypes.c_long
for protection, flags in {kinds}:
    pid = os.fork()
    if not pid:
        confine()
        os._exit(libc.syscall({mmap}, None, ctypes.c_long({too_much}), protection, flags, -1, None) == -1)
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), end="")
"""
    assert output_of(story) == "1" * len(kinds)


@pytest.mark.parametrize("machine", ARCHITECTURES)
def test_the_numbers_of_system_calls_are_unique(machine: str) -> None:
    assert len({getattr(call, machine) for call in ALLOWED.values()}) == len(ALLOWED)


@pytest.mark.parametrize("can", [True, False])
def test_the_deployment_check_warns_of_a_kernel_without_seccomp(monkeypatch: pytest.MonkeyPatch, can: bool) -> None:
    monkeypatch.setattr(apps, "is_possible", lambda: can)
    warnings = run_checks(tags=["security"], include_deployment_checks=True)
    assert (apps.NOT_CONFINED in warnings) is not can


def test_a_kernel_without_seccomp_is_logged(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(runner, "is_possible", lambda: False)
    runner.warn_if_unconfined.cache_clear()
    with running_scripts() as one:
        run_script(one, "")
        run_script(one, "while (1);")
    assert caplog.text.count("scripts.not_confined") == 1
