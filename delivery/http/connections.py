"""The connections that libcurl keeps: which socket each has, and whether something has come that nobody asked for.

libcurl looks at a kept connection only where it has not been used for a second. What an endpoint, or a proxy in front
of it, has said in between would be taken for the answer to the next request, whoever sent that.
"""

import os
import select
import socket
from collections.abc import Iterable

Address = tuple[str, int]


class Connections:
    """The sockets of one client's connections, by their local addresses; belongs to the client's thread."""

    def __init__(self) -> None:
        self._descriptors: dict[Address, int] = {}

    def opened(self, local: Address, descriptors: Iterable[int]) -> None:
        """Note that one of the sockets just opened has become the connection with this local address."""
        _, port = local
        for descriptor in descriptors:
            if _port_of(descriptor) == port:
                self._descriptors[local] = descriptor

    def has_unread(self, local: Address) -> bool:
        """Tell whether there is something to read on a kept connection, or its end, before anything was asked."""
        poll = select.poll()
        if local not in self._descriptors:
            return True  # nobody knows
        poll.register(self._descriptors[local], select.POLLIN)
        return bool(poll.poll(0))


def _port_of(descriptor: int) -> int | None:
    try:
        with socket.socket(fileno=os.dup(descriptor)) as looked_at:
            port: int = looked_at.getsockname()[1]
    except OSError:  # one of several that were tried, closed by now
        return None
    return port
