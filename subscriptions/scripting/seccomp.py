"""Allow a process only the few system calls that scripts need, with Linux's seccomp(2).

An exploit of the JavaScript engine then has memory to compute with, one socket and a clock. Any other call ends the
process; our own program makes none.
"""

import ctypes
import errno
import os
import struct
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

CONNECTION: Final = 0
"""The descriptor of the socket to the parent."""
PROT_EXEC: Final = 4
RLIMIT_CPU: Final = 0

PR_SET_SECCOMP: Final = 22
FILTER_MODE: Final = 2
KILL_PROCESS: Final = 0x8000_0000
ALLOW: Final = 0x7FFF_0000

LOAD: Final = 0x20
JUMP_IF_EQUAL: Final = 0x15
JUMP_IF_ANY_BIT: Final = 0x45
RETURN: Final = 0x06
NUMBER, ARCHITECTURE, ARGUMENTS = 0, 4, 16
"""Their offsets in struct seccomp_data; of an argument the lower half, which suffices here."""

ARCHITECTURES: Final = {"x86_64": 0xC000_003E, "aarch64": 0xC000_00B7}
"""The supported processors and their audit numbers."""


@dataclass(frozen=True, slots=True)
class Must:
    """A condition on a call's argument: it equals `be`, or has none of the bits `lack`."""

    argument: int
    be: int = 0
    lack: int = 0


@dataclass(frozen=True, slots=True)
class Call:
    """An allowed system call, with its number on each processor."""

    x86_64: int
    aarch64: int
    must: Sequence[Must] = ()


ALLOWED: Final = {
    "recvfrom": Call(45, 207, [Must(0, be=CONNECTION)]),
    "sendto": Call(44, 206, [Must(0, be=CONNECTION)]),
    "brk": Call(12, 214),
    "mmap": Call(9, 222, [Must(2, lack=PROT_EXEC)]),
    "mprotect": Call(10, 226, [Must(2, lack=PROT_EXEC)]),
    "mremap": Call(25, 216),
    "munmap": Call(11, 215),
    "madvise": Call(28, 233),
    "futex": Call(202, 98),
    "clock_gettime": Call(228, 113),
    "gettimeofday": Call(96, 169),
    "getrandom": Call(318, 278),
    "prlimit64": Call(302, 261, [Must(0, be=0), Must(1, be=RLIMIT_CPU)]),  # its own CPU time, before each job
    "restart_syscall": Call(219, 128),
    "rt_sigaction": Call(13, 134),
    "rt_sigprocmask": Call(14, 135),
    "rt_sigreturn": Call(15, 139),
    "close": Call(3, 57),
    "exit": Call(60, 93),
    "exit_group": Call(231, 94),
}


def is_possible() -> bool:
    """Return whether this kernel has seccomp filters and this processor is supported."""
    if os.uname().machine not in ARCHITECTURES or sys.maxsize < 2**32:
        return False
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(PR_SET_SECCOMP, FILTER_MODE, None, 0, 0)
    return ctypes.get_errno() == errno.EFAULT  # it would have read a filter


def confine() -> None:
    """Install the filter in this process, irrevocably; requires PR_SET_NO_NEW_PRIVS, else raises `OSError`."""
    machine = os.uname().machine
    program = b"".join(
        (
            _instruction(LOAD, ARCHITECTURE),
            _instruction(JUMP_IF_EQUAL, ARCHITECTURES[machine], then=1),
            _instruction(RETURN, KILL_PROCESS),  # the numbers of another architecture mean other calls
            _instruction(LOAD, NUMBER),
            *(part for call in ALLOWED.values() for part in _block(getattr(call, machine), call.must)),
            _instruction(RETURN, KILL_PROCESS),
        )
    )
    instructions = ctypes.create_string_buffer(program, len(program))
    filter_ = struct.pack("@HP", len(program) // 8, ctypes.addressof(instructions))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_SECCOMP, FILTER_MODE, filter_, 0, 0):
        raise OSError(ctypes.get_errno(), "seccomp")


def _block(number: int, conditions: Sequence[Must]) -> Iterator[bytes]:
    """Yield the instructions that judge one call; other calls jump over them."""
    length = 2 * len(conditions) + 2
    yield _instruction(JUMP_IF_EQUAL, number, otherwise=length)
    for place, must in enumerate(conditions):
        to_end = length - 2 * place - 3
        yield _instruction(LOAD, ARGUMENTS + 8 * must.argument)
        if must.lack:
            yield _instruction(JUMP_IF_ANY_BIT, must.lack, then=to_end)
        else:
            yield _instruction(JUMP_IF_EQUAL, must.be, otherwise=to_end)
    yield _instruction(RETURN, ALLOW)
    yield _instruction(RETURN, KILL_PROCESS)


def _instruction(code: int, value: int, *, then: int = 0, otherwise: int = 0) -> bytes:
    return struct.pack("=HBBI", code, then, otherwise, value)
