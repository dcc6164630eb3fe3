"""HTTP over libcurl's multi interface: one event loop, no thread per request.

`requests` has no total deadline, opens connections where the address cannot be checked, and costs nine times the CPU.
`socket_action` with epoll costs per ready socket; `select` stops at descriptor 1,024 and `perform` costs per handle.
"""

from collections.abc import Collection, Hashable
from math import ceil, inf
from typing import Any, Final

import pycurl

from broker_project.core import boot_clock
from broker_project.core.egress import EgressPolicy
from delivery.http.resolver import Resolver, entry_of
from delivery.http.sockets import Sockets
from delivery.http.transfer import (
    ABANDONED,
    LEASE_ENDED,
    TOO_LATE,
    UNUSABLE,
    Answer,
    Connections,
    EncodedRequest,
    Lease,
    Transfer,
)
from delivery.limits import (
    CONNECT_TIMEOUT_MS,
    GATHER_SECONDS,
    KEPT_CONNECTIONS,
    MAX_ANSWER_BYTES,
    OVERDUE_SECONDS,
    REQUEST_DEADLINE_SECONDS,
    STALL_SECONDS,
)

OVERDUE: Final = "Operation timed out"
NOT_FOUND_IN_TIME: Final = "Resolving timed out"
NOT_OF_LIBCURL: Final = [b"Expect:", b"Accept:"]
"""Keeps libcurl from adding these headers."""
NOTHING: Final = EncodedRequest("", "", [], b"")


class HttpClient:
    """Any number of requests at once in one thread: `start` them, then `wait` for answers.

    Owned by one thread; only `interrupt` may be called from others. Create it after forking.
    """

    def __init__(
        self,
        *,
        egress: EgressPolicy,
        deadline_seconds: float = REQUEST_DEADLINE_SECONDS,
        max_answer_bytes: int = MAX_ANSWER_BYTES,
    ) -> None:
        self._egress = egress
        self._deadline_seconds = deadline_seconds
        self._max_answer_bytes = max_answer_bytes
        self._multi = pycurl.CurlMulti()
        self._multi.setopt(pycurl.M_MAXCONNECTS, KEPT_CONNECTIONS)
        self._sockets = Sockets(self._multi, self._end_late)
        self._connections = Connections()
        self._resolver = Resolver()
        self._sockets.act_on(self._resolver.bell, self._resolver.read_bell)
        self._idle: list[Transfer] = []
        self._in_flight: dict[Transfer, None] = {}
        self._late_at = inf
        """Time since boot before which none of them is late."""
        self._looked_at = boot_clock.since_boot()
        """Time since boot at which it last looked at its sockets."""
        self._ended: list[Answer] = []
        """What came of those that were late."""
        self._started = 0
        self._burst = 0
        """The number of what goes out with the next `begin`."""
        self._unanswered = 0
        """How many of the last burst."""
        self.is_gathering = False
        """Whether some of the requests that went out together last have no answer yet."""
        self._gathers_until = 0.0
        """Time since boot until which their answers are worth waiting for."""

    def start(
        self, token: Hashable, request: EncodedRequest, *, until: float | None = None, lease: Lease | None = None
    ) -> None:
        """Take on a request; it goes out with the next `begin` or `wait`, its answer comes from a later `wait`.

        Its deadline is `until` (time since boot); None: the client's, from now on. It ends with its `lease` too, which
        may be renewed meanwhile.
        """
        now = self._make_up_for_stall()
        transfer = self._idle.pop() if self._idle else self._new_transfer()
        handle, url, method = transfer.handle, request.url, request.method
        transfer.token, transfer.request, transfer.burst = token, request, self._burst
        transfer.until, transfer.lease = now + self._deadline_seconds if until is None else until, lease
        transfer.opened, transfer.refused_addresses = [], {}
        transfer.refused = transfer.socket_failure = ""
        transfer.has_allowed = transfer.was_begun = transfer.is_stale = transfer.is_restarted = False
        transfer.has_head = transfer.is_interim = transfer.is_prolonged = False
        transfer.needs_look_up = transfer.is_looked_up = False
        transfer.look_up_began_at, transfer.looked_up_seconds = None, 0.0
        # libcurl counts from the moment in which it begins: it gets what is left of the time.
        transfer.timeout_ms = max(1, ceil((transfer.until - now) * 1000))
        handle.setopt(pycurl.TIMEOUT_MS, transfer.timeout_ms)
        if url.startswith(UNUSABLE):
            transfer.refused, url = url.removeprefix(UNUSABLE), UNUSABLE
        if url != transfer.url:
            handle.setopt(pycurl.URL, url)
            transfer.url = url
        if request.body or method != "GET":
            handle.setopt(pycurl.POSTFIELDS, request.body)
        else:
            handle.setopt(pycurl.HTTPGET, 1)  # without the headers of a body
        if method != transfer.method:
            handle.setopt(pycurl.CUSTOMREQUEST, method)
            transfer.method = method
        handle.setopt(pycurl.HTTPHEADER, request.lines + NOT_OF_LIBCURL)
        self._multi.add_handle(handle)
        self._in_flight[transfer] = None
        self._late_at = min(self._late_at, late_at(transfer))
        self._started += 1

    def begin(self) -> None:
        """Let what was started go out now, without waiting for anything."""
        if not self._started:
            return
        self._make_up_for_stall()
        self._unanswered, self._started = self._started, 0
        self._burst += 1
        self.is_gathering, self._gathers_until = True, boot_clock.since_boot() + GATHER_SECONDS
        self._end_late()
        self._multi.socket_action(pycurl.SOCKET_TIMEOUT, 0)

    @property
    def gather_seconds(self) -> float:
        """How much longer the answers to the requests that went out together last are worth waiting for."""
        return self._gathers_until - boot_clock.since_boot() if self.is_gathering else 0.0

    def wait(self, seconds: float) -> list[Answer]:
        """Return what has been answered, after at most `seconds`, at once when interrupted or a request may be late.

        Where there is an answer, those that went out with it have 3 ms to be answered too.
        """
        end = min(self._make_up_for_stall() + seconds, self._late_at)
        answers = self._finished()  # some may have come while others were begun
        is_over = False
        while not (answers or is_over):
            is_over = self._sockets.act(end)
            answers = self._finished()
            end = min(end, self._late_at)  # what waits for its name is late sooner
            is_over = is_over or boot_clock.since_boot() >= end
        if answers and self.is_gathering:
            end = boot_clock.since_boot() + GATHER_SECONDS
            is_over = False
            while self.is_gathering and not is_over and boot_clock.since_boot() < end:
                is_over = self._sockets.act(end)
                answers += self._finished()
        self._looked_at = boot_clock.since_boot()
        return answers

    def abandon(self, tokens: Collection[Hashable]) -> None:
        """End the requests started under these tokens: nobody waits for their answers any more."""
        for transfer in [*self._in_flight]:
            if transfer.token in tokens:
                self._finish(transfer.handle, ABANDONED, LEASE_ENDED)

    def watch_too(self, descriptor: int) -> None:
        """Make `wait` return when this descriptor is readable too."""
        self._sockets.watch_too(descriptor)

    def interrupt(self) -> None:
        """Make `wait` return; may be called from any thread."""
        self._sockets.ring()

    def close(self) -> None:
        """Close sockets and descriptors; requests in flight are dropped."""
        self._multi.close()
        self._sockets.close()
        self._resolver.close()

    def _new_transfer(self) -> Transfer:
        return Transfer(self._connections, self._egress, max_answer_bytes=self._max_answer_bytes)

    def _finished(self) -> list[Answer]:
        answers, self._ended = self._ended, []
        self._looked_at = boot_clock.since_boot()
        for transfer, (addresses, failure) in self._resolver.found():
            if failure:
                answers.append(self._finish(transfer.handle, pycurl.E_COULDNT_RESOLVE_HOST, failure))
            else:
                self._go_on(transfer, addresses)
        more = len(self._in_flight)
        while more:
            more, done, failed = self._multi.info_read()
            for handle in done:
                answers.append(self._finish(handle, 0, ""))
            for handle, number, text in failed:
                if not self._again(handle):
                    answers.append(self._finish(handle, number, text))
        return answers

    def _make_up_for_stall(self) -> float:
        """Give requests the time back in which nobody has looked at the sockets; return the time since boot.

        Their endpoints may have answered in time. Their leases end as before.
        """
        now = boot_clock.since_boot()
        stall, self._looked_at = now - self._looked_at, now
        if stall > STALL_SECONDS and self._in_flight:
            for transfer in self._in_flight:
                transfer.extend(stall)
            self._late_at = min(map(late_at, self._in_flight))
        return now

    def _end_late(self) -> None:
        """End what has lost its lease, or what libcurl has not ended at its deadline, before anything more is sent.

        What was certainly not sent has failed; of what may have been sent nobody knows.
        """
        if (now := boot_clock.since_boot()) < self._late_at:
            return
        for transfer in [*self._in_flight]:
            if transfer.lease and now >= transfer.lease.lease_ends_at:
                transfer.refused = transfer.refused if transfer.was_begun else TOO_LATE
                self._ended.append(self._finish(transfer.handle, ABANDONED, LEASE_ENDED))
            elif now >= late_at(transfer):
                text = OVERDUE if transfer.look_up_began_at is None else NOT_FOUND_IN_TIME
                self._ended.append(self._finish(transfer.handle, pycurl.E_OPERATION_TIMEDOUT, text))
        self._late_at = min(map(late_at, self._in_flight), default=inf)

    def _again(self, handle: Any) -> bool:
        """Send what has not gone out over a kept connection, because something had come on it, over a new one.

        What has not gone out because its host has no addresses yet waits for them.
        """
        transfer: Transfer = handle.transfer
        if transfer.needs_look_up:
            self._multi.remove_handle(handle)
            transfer.look_up_began_at = boot_clock.since_boot()
            self._late_at = min(self._late_at, late_at(transfer))
            self._resolver.look_up(transfer)
            return True
        if not transfer.is_stale:
            return False
        self._multi.remove_handle(handle)
        handle.setopt(pycurl.FRESH_CONNECT, 1)
        transfer.is_restarted = True
        self._start_again(transfer)
        return True

    def _go_on(self, transfer: Transfer, addresses: list[str]) -> None:
        """Send what has waited for the addresses of its host; for both together it has the time to connect."""
        assert transfer.look_up_began_at is not None  # noqa: S101 - it has waited
        transfer.looked_up_seconds = boot_clock.since_boot() - transfer.look_up_began_at
        transfer.connect_ms = max(1, transfer.connect_ms - ceil(transfer.looked_up_seconds * 1000))
        transfer.handle.setopt(pycurl.RESOLVE, [entry_of(transfer.request.url, addresses)])
        transfer.handle.setopt(pycurl.CONNECTTIMEOUT_MS, transfer.connect_ms)
        transfer.is_looked_up = True
        self._start_again(transfer)

    def _start_again(self, transfer: Transfer) -> None:
        self._idle.append(transfer)
        before = transfer.burst, transfer.is_restarted, transfer.is_looked_up, transfer.looked_up_seconds
        self.start(transfer.token, transfer.request, until=transfer.until, lease=transfer.lease)
        transfer.burst, transfer.is_restarted, transfer.is_looked_up, transfer.looked_up_seconds = before
        self._started -= 1

    def _finish(self, handle: Any, number: int, text: str) -> Answer:
        """Return what came of a request; `number` is libcurl's error, 0 for none."""
        transfer: Transfer = handle.transfer
        status = handle.getinfo(pycurl.RESPONSE_CODE)
        if transfer.look_up_began_at is not None:
            transfer.looked_up_seconds = boot_clock.since_boot() - transfer.look_up_began_at
        duration_ms = round((handle.getinfo(pycurl.TOTAL_TIME) + transfer.looked_up_seconds) * 1000)
        answer = Answer(transfer.token, status, bytes(transfer.head), bytes(transfer.body), duration_ms)
        if (number or not status) and (failure := transfer.failure(number, text, status)):
            answer.status, answer.body, answer.failure = 0, b"", failure
        if transfer.is_restarted:
            handle.setopt(pycurl.FRESH_CONNECT, 0)
        if transfer.is_looked_up:  # it would tell libcurl the same addresses with each later request
            handle.unsetopt(pycurl.RESOLVE)
        if transfer.connect_ms != CONNECT_TIMEOUT_MS:
            transfer.connect_ms = CONNECT_TIMEOUT_MS
            handle.setopt(pycurl.CONNECTTIMEOUT_MS, CONNECT_TIMEOUT_MS)
        if transfer.look_up_began_at is None:
            self._multi.remove_handle(handle)
        else:
            self._resolver.forget(transfer)
        del self._in_flight[transfer]
        if transfer.burst == self._burst - 1:
            self._unanswered -= 1
            self.is_gathering = self._unanswered > 0
        transfer.token, transfer.request, transfer.lease = None, NOTHING, None
        transfer.head, transfer.body = bytearray(), bytearray()
        self._idle.append(transfer)
        return answer


def late_at(transfer: Transfer) -> float:
    """Return the time since boot at which the client ends a request, if nothing else has."""
    overdue = transfer.until + OVERDUE_SECONDS
    if transfer.look_up_began_at is not None:
        overdue = min(overdue, transfer.look_up_began_at + transfer.connect_ms / 1000)
    elif transfer.is_prolonged and not transfer.was_begun:
        overdue = min(overdue, transfer.until + (transfer.connect_ms - transfer.timeout_ms) / 1000)
    return overdue if transfer.lease is None else min(overdue, transfer.lease.lease_ends_at)
