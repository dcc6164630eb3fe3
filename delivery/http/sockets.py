"""The sockets that a client of libcurl watches, with its timer and its bell."""

import os
import select
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

import pycurl

from broker_project.core import boot_clock

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


class Sockets:
    """The sockets that libcurl wants watched, its timer, and a bell that other threads may ring: one epoll.

    Owned by one thread, but for `ring`.
    """

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
        self._others: set[int] = set()
        self._acts: dict[int, Callable[[], object]] = {}
        """What is called when a descriptor is readable."""
        self._watched: set[int] = set()
        self._timer_at: float | None = None

    def act(self, end: float) -> bool:
        """Wait for something to happen, at most until `end` (time since boot), and let libcurl act on it.

        Returns whether the bell was rung, or there is something on another descriptor.
        """
        now = boot_clock.since_boot()
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
            elif descriptor in self._others:
                interrupted = True
            elif descriptor in self._acts:
                self._acts[descriptor]()
            else:  # a kept connection on which something has come, or that has ended, while nobody uses it
                with suppress(OSError):  # it may be closed by now
                    self._poll.unregister(descriptor)
        return interrupted

    def watch_too(self, descriptor: int) -> None:
        """Let `act` return when this one is readable; the caller reads it."""
        self._others.add(descriptor)
        self._poll.register(descriptor, select.EPOLLIN)

    def act_on(self, descriptor: int, act: Callable[[], object]) -> None:
        """Let `act` call this, and go on waiting, when the descriptor is readable."""
        self._acts[descriptor] = act
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
        self._timer_at = None if milliseconds < 0 else boot_clock.since_boot() + milliseconds / 1000

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
