"""Find and hold free ports on loopback."""

import contextlib
import secrets
import socket
from pathlib import Path

LOOPBACK = "127.0.0.1"
LOOPBACK_NETWORKS = "127.0.0.0/8,::1/128"
"""Networks that endpoints may be in on a developer's machine and in tests."""
EPHEMERAL_PORTS = Path("/proc/sys/net/ipv4/ip_local_port_range")
"""The first and the last port that Linux assigns to outgoing connections."""
MIN_PORT = 15_000
"""Well-known ports of programs are below."""
MIN_RANGE = 1_000
"""If fewer ports are left outside the ephemeral range, one from the end of that range is used."""


def is_free(port: int) -> bool:
    """Tell whether no program listens on the port, or holds it."""
    try:
        hold(port).close()
    except OSError:
        return False
    return True


def any_free() -> int:
    """Return a random free port outside the ephemeral range, whose ports may be taken before a server has started."""
    try:
        first = int(EPHEMERAL_PORTS.read_text().split()[0])
    except (OSError, ValueError, IndexError):
        first = 32_768
    candidates = range(MIN_PORT, first) if first - MIN_PORT >= MIN_RANGE else range(first, 61_000)
    while not is_free(port := secrets.choice(candidates)):
        pass
    return port


def hold(port: int) -> socket.socket:
    """Hold a port for a server that binds it with SO_REUSEPORT, now and at its restarts; a taken one raises `OSError`.

    Otherwise two such servers could share the port and its connections. Connections that a server has left in TIME_WAIT
    do not count. Several sockets may bind the port at once, but only one of them can listen on it, if for a moment.
    """
    with contextlib.ExitStack() as unless_held:
        holding = unless_held.enter_context(socket.socket())
        holding.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holding.bind((LOOPBACK, port))
        holding.listen()
        holding.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)  # from now on it is not free
        holding.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        holding.shutdown(socket.SHUT_RDWR)  # it stays bound, and is sent no connections
        unless_held.pop_all()
    return holding
