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


def accepts(port: int) -> bool:
    """Say whether somebody accepts connections on the port."""
    try:
        socket.create_connection((LOOPBACK, port), timeout=1).close()
    except OSError:
        return False
    return True
