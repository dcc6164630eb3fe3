"""The sockets that libcurl wants watched, its timer, and a bell that other threads may ring: one epoll.

`socket_action` with epoll costs per ready socket; `select` stops at descriptor 1,024 and `perform` costs per handle.
"""

import os
import select
import socket
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, Final

import pycurl

EVENTS_AT_ONCE: Final = 1_024
READABLE: Final = select.EPOLLIN | select.EPOLLHUP | select.EPOLLERR
ACTIONS: Final = tuple(
    (pycurl.CSELECT_IN if events & READABLE else 0) | (pycurl.CSELECT_OUT if events & select.EPOLLOUT else 0)
    for events in range((READABLE | select.EPOLLOUT) + 1)
)
"""What libcurl does about epoll's events."""
EVENTS: Final = {
    pycurl.POLL_NONE: 0,
    pycurl.POLL_IN: select.EPOLLIN,
    pycurl.POLL_OUT: select.EPOLLOUT,
    pycurl.POLL_INOUT: select.EPOLLIN | select.EPOLLOUT,
}
"""What epoll watches for where libcurl wants it."""

Address = tuple[str, int]


class Sockets:
    """What one libcurl multi handle waits for; owned by one thread, but for `ring`."""

    def __init__(self, multi: Any, before_acting: Callable[[], object]) -> None:
        self._multi = multi
        self._before_acting = before_acting
        """Called after each wait, before libcurl can send anything: this process may have been stopped meanwhile."""
        multi.setopt(pycurl.M_SOCKETFUNCTION, self._watch)
        multi.setopt(pycurl.M_TIMERFUNCTION, self._set_timer)
        self._poll = select.epoll()
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._bell_lock = threading.Lock()
        """Held while ringing: otherwise the descriptor could be closed, and be another file by then."""
        self._is_open = True
        self._poll.register(self._bell, select.EPOLLIN)
        self._other = -1
        self._watched: set[int] = set()
        self._timer_at: float | None = None

    def act(self, end: float) -> bool:
        """Wait for something to happen, at most until `end` (monotonic), and let libcurl act on it.

        Returns whether the bell was rung, or there is something on the other descriptor.
        """
        now = time.monotonic()
        if self._timer_at is not None and self._timer_at <= now:
            self._timer_at = None
            self._before_acting()
            self._multi.socket_action(pycurl.SOCKET_TIMEOUT, 0)
            return False
        until = end if self._timer_at is None else min(end, self._timer_at)
        ready = self._poll.poll(max(0.0, until - now), EVENTS_AT_ONCE)
        self._before_acting()
        interrupted = False
        for descriptor, events in ready:
            if descriptor in self._watched:
                self._multi.socket_action(descriptor, ACTIONS[events])
            elif descriptor == self._bell:
                os.eventfd_read(self._bell)
                interrupted = True
            elif descriptor == self._other:
                interrupted = True
            else:  # a kept connection on which something has come, or that has ended, while nobody uses it
                with suppress(OSError):  # it may be closed by now
                    self._poll.unregister(descriptor)
        return interrupted

    def watch_too(self, descriptor: int) -> None:
        """Let `act` return when this one is readable; the caller reads it."""
        self._other = descriptor
        self._poll.register(descriptor, select.EPOLLIN)

    def ring(self) -> None:
        """Make `act` return; may be called from any thread, also after `close`."""
        with self._bell_lock:
            if self._is_open:
                os.eventfd_write(self._bell, 1)

    def close(self) -> None:
        """Give back the descriptors."""
        self._poll.close()
        with self._bell_lock:
            self._is_open = False
            os.close(self._bell)

    def _set_timer(self, milliseconds: int) -> None:
        self._timer_at = None if milliseconds < 0 else time.monotonic() + milliseconds / 1000

    def _watch(self, action: int, descriptor: int, _multi: object, _data: object) -> None:
        """Watch a socket, or no longer: then epoll keeps it, as adding it for each request costs ten times as much."""
        if action == pycurl.POLL_REMOVE:
            self._watched.discard(descriptor)
            return
        self._watched.add(descriptor)
        try:
            self._poll.modify(descriptor, EVENTS[action])
        except FileNotFoundError:  # it is new; maybe under the number of one that was closed, which the kernel forgot
            self._poll.register(descriptor, EVENTS[action])


class Connections:
    """The sockets of one client's connections, by their local addresses; belongs to the client's thread."""

    def __init__(self) -> None:
        self._descriptors: dict[Address, int] = {}
        self._polls: dict[int, select.poll] = {}
        """By descriptor; each asks for that one."""

    def opened(self, local: Address, descriptors: Iterable[int]) -> None:
        """Note that one of the sockets just opened has become the connection with this local address."""
        _, port = local
        for descriptor in descriptors:
            # Of several that were tried, all but one are closed by now.
            with suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as opened:
                if opened.getsockname()[1] == port:
                    self._descriptors[local] = descriptor
                    self._polls[descriptor] = select.poll()
                    self._polls[descriptor].register(descriptor, select.POLLIN)

    def has_unread(self, local: Address) -> bool:
        """Tell whether there is something to read on a kept connection, or its end, before anything was asked."""
        descriptor = self._descriptors.get(local)
        return descriptor is None or bool(self._polls[descriptor].poll(0))  # None: unknown
