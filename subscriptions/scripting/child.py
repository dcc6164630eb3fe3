"""The program of a script's process: takes a job, answers, takes the next.

It is started by its path and imports nothing of the broker but what runs scripts. What it could do to anybody is
dropped before the first one: it can open nothing, start nothing and signal nobody, and what it prints goes nowhere.
Its parent watches its CPU clock and kills it (contract 8.3).
"""

import ctypes
import os
import resource
import socket
import sys
import time
from pathlib import Path
from typing import Final

from broker_project.core.subprocesses import die_with, lower_priority
from subscriptions.scripting.interpreter import answer
from subscriptions.scripting.jobs import Frame, packed, take_frame
from subscriptions.scripting.seccomp import CONNECTION, confine, is_possible

CHUNK: Final = 1024 * 1024
MAX_BYTES: Final = 16 * CHUNK
"""More than any job has."""
STDOUT, STDERR = 1, 2
PR_SET_NO_NEW_PRIVS: Final = 38
NICENESS: Final = 5
"""The broker's own work comes first; much more, and a busy machine would let scripts run into the limit of time."""
DATA_BYTES: Final = 128 * 1024 * 1024
SPARE_CPU_SECONDS: Final = 2


def drop_privileges(parent: int) -> None:
    """Give up whatever a script has no use for, and die with the parent."""
    die_with(parent)
    ctypes.CDLL(None).prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    lower_priority(NICENESS)
    os.dup2(STDOUT, STDERR)  # nowhere; until now the worker's log, for what keeps this program from starting
    for limit, most in {
        resource.RLIMIT_DATA: DATA_BYTES,
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_FSIZE: 0,
        resource.RLIMIT_NOFILE: 0,
    }.items():
        resource.setrlimit(limit, (most, most))


def serve(prelude: str, connection: socket.socket) -> None:
    """Answer jobs until the parent hangs up."""
    connection.sendall(packed({}, b""))  # ready
    while True:
        resource.setrlimit(resource.RLIMIT_CPU, (int(time.process_time()) + SPARE_CPU_SECONDS, resource.RLIM_INFINITY))
        job, body = receive(connection)
        connection.sendall(packed(*answer(prelude, job, body)))


def receive(connection: socket.socket) -> Frame:
    """Return the next frame.

    Raises:
        EOFError: the parent has hung up.

    """
    received = bytearray()
    while not (frame := take_frame(received, max_head=MAX_BYTES, max_body=MAX_BYTES)):
        chunk = connection.recv(CHUNK)
        if not chunk:
            raise EOFError
        received += chunk
    return frame


if __name__ == "__main__":
    source = Path(__file__).with_name("prelude.js").read_text()
    drop_privileges(parent=int(sys.argv[1]))
    opened = socket.socket(fileno=CONNECTION)
    if is_possible():
        confine()
    try:
        serve(source, opened)
    finally:
        os._exit(0)  # at once: to say why, or goodbye, takes calls that would look as if a script had crashed it
