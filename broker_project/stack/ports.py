"""Loopback ports: chosen once, kept, and left to others who hold them."""

import secrets
import socket
from pathlib import Path

LOOPBACK = "127.0.0.1"
LOOPBACK_NETWORKS = "127.0.0.0/8,::1/128"
"""Where endpoints may be on a developer's machine, and in tests."""
HANDED_OUT = Path("/proc/sys/net/ipv4/ip_local_port_range")
"""The first and the last port that Linux gives to those who connect to others."""
LOWEST = 15_000
"""Below are ports that programs are known by."""
FEWEST = 1_000
"""Among fewer one would meet others; then it is one of those that Linux hands out after all."""


def is_free(port: int) -> bool:
    """Say whether nobody listens on the port."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
    return True


def any_free() -> int:
    """Return a port that nobody listens on and that the system gives to nobody else.

    Those that it hands out itself, to whoever connects somewhere, may be gone before a server has started.
    """
    while not is_free(port := secrets.choice(_not_handed_out())):
        pass
    return port


def _not_handed_out() -> range:
    try:
        first = int(HANDED_OUT.read_text().split()[0])
    except (OSError, ValueError, IndexError):
        first = 32_768
    return range(LOWEST, first) if first - LOWEST >= FEWEST else range(first, 61_000)


def free_from(preferred: int) -> int:
    """Return the preferred port, or the next that is free."""
    return next((port for port in range(preferred, preferred + 100) if is_free(port)), any_free())


def hold(port: int) -> socket.socket:
    """Take a port for a server that shares it, from now on and over its restarts; others find it taken.

    Two such servers would both get it, and each other's connections, if both found it free while neither listens yet.

    Raises:
        OSError: somebody else has it.

    """
    holding = socket.socket()
    holding.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    holding.bind((LOOPBACK, port))
    return holding


def accepts(port: int) -> bool:
    """Say whether somebody accepts connections on the port."""
    try:
        socket.create_connection((LOOPBACK, port), timeout=1).close()
    except OSError:
        return False
    return True
