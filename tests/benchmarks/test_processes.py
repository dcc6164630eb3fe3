"""What the kernel tells about processes and servers."""

import os
import socket
import subprocess

from benchmarks.processes import context_switches, received_segments
from broker_project.stack.ports import LOOPBACK

REQUESTS = 10


def test_each_request_to_a_server_is_counted_once() -> None:
    with socket.create_server((LOOPBACK, 0)) as server:
        port = server.getsockname()[1]
        with socket.create_connection((LOOPBACK, port)) as client, server.accept()[0] as connection:
            assert received_segments(port) == 0
            for _ in range(REQUESTS):
                client.sendall(b"SELECT 1")
                assert connection.recv(100) == b"SELECT 1"
                connection.sendall(b"1")  # is received by the client, not by the server
            assert received_segments(port) == REQUESTS


def test_a_process_that_waits_leaves_its_core() -> None:
    before = context_switches(os.getpid())
    with subprocess.Popen(["true"]) as ended:  # is waited for
        pass
    assert context_switches(os.getpid()) > before
    assert context_switches(ended.pid) == 0
