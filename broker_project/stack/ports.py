"""Loopback ports: chosen once, kept, and left to others who hold them."""

import socket

LOOPBACK = "127.0.0.1"


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
    """Return a port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        port: int = probe.getsockname()[1]
    return port


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
