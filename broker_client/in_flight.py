"""The messages in flight at one consumer, shared by its consumer thread and its acknowledger.

Moments are those of `message.now`.
"""

import logging
import threading
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import inf
from typing import Final

from broker_client.message import Message, ReceiptResult, now

BATCH_SECONDS: Final = 0.05
"""How long a disposition may wait for others, to be sent in one call."""
MAX_BATCH: Final = 100
MIN_TIMEOUT: Final = 1.0
"""Seconds: a broker that answers as slowly as that is heard, however little time is left."""

log = logging.getLogger(__name__)


class Disposition(StrEnum):
    """What the broker is told about a message."""

    EXTEND = "extend"
    """The handler works on it, or will."""

    ACK = "ack"
    """It is done."""

    NACK = "nack"
    """The handler failed: return the message."""

    NOT_ATTEMPTED = "not_attempted"
    """The handler has not started: return the message without counting a redelivery."""


@dataclass(slots=True)
class InFlightMessage:
    """One message in flight."""

    message: Message
    until: float
    """When the message times out."""
    extend_at: float
    is_started: bool = False
    is_lost: bool = False
    """Whether the broker refused to extend it: another client has it, or may get it at any moment."""
    disposition: Disposition | None = None
    """How it ended, once that is known."""
    resolved_at: float = 0.0

    @property
    def can_start(self) -> bool:
        """Whether the handler may start."""
        return not self.is_started and not self.disposition

    @property
    def may_be_done(self) -> bool:
        """Whether the handler works on it or has finished it: an ack counts unless another client has got it since."""
        return self.is_started and self.disposition in {None, Disposition.ACK}

    @property
    def due_at(self) -> float:
        """When the next call about it is due, `inf` for never."""
        if self.disposition:
            return self.resolved_at + BATCH_SECONDS
        return inf if self.is_lost else self.extend_at


def extension_time(now: float, until: float) -> float:
    """Return when to extend a message that times out at `until`: after a third of the time that is left."""
    return now + (until - now) / 3


def due_calls(messages: Collection[InFlightMessage], now: float) -> dict[Disposition, list[str]]:
    """Return the receipts to send now by disposition, the most urgent first.

    Dispositions are sent at once when no message is left that they could wait for.
    """
    resolved = [one for one in messages if one.disposition]
    working = [one for one in messages if not one.disposition]
    extendable = [one for one in working if not one.is_lost]
    calls: dict[Disposition, list[str]] = {}
    if any(one.due_at <= now for one in extendable):
        calls[Disposition.EXTEND] = [one.message.receipt for one in extendable]
    if not working or len(resolved) >= MAX_BATCH or any(one.due_at <= now for one in resolved):
        for one in resolved:
            if one.disposition:
                calls.setdefault(one.disposition, []).append(one.message.receipt)
    return calls


def call_timeout(messages: Collection[InFlightMessage], now: float) -> float:
    """Return the seconds that a call or a pause may take with these messages in flight.

    A third of what is left of the first to time out: so at least two more tries remain, and mostly more.
    """
    left = min((one.until - now for one in messages if one.until > now and not one.is_lost), default=inf)
    return max(left / 3, MIN_TIMEOUT)


class InFlightMessages:
    """The messages in flight at one consumer, oldest first."""

    def __init__(self) -> None:
        self._messages: dict[str, InFlightMessage] = {}
        self._changed = threading.Condition()
        self._quiet_until = 0.0
        self._is_closed = False
        self._is_abandoned = False

    @property
    def is_closed(self) -> bool:
        """Whether no further message is started."""
        return self._is_closed

    def holds(self, message: Message) -> bool:
        """Return whether the message has surely not gone to another client."""
        with self._changed:
            held = self._messages.get(message.receipt)
            return held is not None and not held.is_lost and held.until > now()

    def add(self, messages: Iterable[Message]) -> None:
        """Add messages that were just fetched; return them to the mailbox if this was closed meanwhile."""
        with self._changed:
            for one in messages:
                at = extension_time(now(), one.held_until)
                self._messages[one.receipt] = InFlightMessage(one, one.held_until, at)
            if self._is_closed:
                self._return_unstarted()
            self._changed.notify_all()

    def start_next(self) -> Message | None:
        """Return the next message for the handler; None if there is none.

        A message that has timed out may be with another client: it is dropped and not started.
        """
        with self._changed:
            for held in [one for one in self._messages.values() if one.can_start]:
                if held.until > now():
                    held.is_started = True
                    return held.message
                held.disposition, held.resolved_at = Disposition.NOT_ATTEMPTED, now()
                log.warning("mailbox.dropped id=%s", held.message.id)
            self._changed.notify_all()
            return None

    def resolve(self, message: Message, disposition: Disposition) -> None:
        """Set how a message ended. A lost message is still acknowledged, which may count, but never returned."""
        with self._changed:
            if held := self._messages.get(message.receipt):
                held.disposition, held.resolved_at = disposition, now()
                if held.is_lost and not held.may_be_done:
                    del self._messages[message.receipt]
            self._changed.notify_all()

    def rest(self, seconds: float) -> None:
        """Wait, until closed at the longest."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_closed, seconds)

    def wait_until_resolved(self) -> None:
        """Wait until the broker has answered for every message, until closed at the longest."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_closed or not self._messages)

    def close(self) -> None:
        """Start no further message, and return those not started."""
        with self._changed:
            self._is_closed = True
            self._return_unstarted()
            self._changed.notify_all()

    def abandon(self, seconds: float = 0.0) -> bool:
        """Forget all messages after at most `seconds`; return whether the broker had answered for all by then."""
        with self._changed:
            is_resolved = self._changed.wait_for(lambda: not self._messages, seconds)
            self._messages.clear()
            self._is_closed = self._is_abandoned = True
            self._changed.notify_all()
            return is_resolved

    def wait_for_calls(self) -> Mapping[Disposition, Sequence[str]] | None:
        """Wait until calls are due and return their receipts; None once abandoned."""
        with self._changed:
            while not self._is_abandoned:
                at, messages = now(), self._messages.values()
                if at >= self._quiet_until and (calls := due_calls(messages, at)):
                    return calls
                due_at = min((one.due_at for one in messages), default=inf)
                self._changed.wait(None if due_at == inf else max(self._quiet_until, due_at) - at)
            return None

    def pause(self, seconds: float) -> None:
        """Postpone all calls by this many seconds."""
        with self._changed:
            self._quiet_until = now() + seconds

    def call_timeout(self) -> float:
        """Return the seconds that a call or a pause may take now."""
        with self._changed:
            return call_timeout(self._messages.values(), now())

    def apply_results(self, disposition: Disposition, results: Iterable[ReceiptResult]) -> dict[str, str]:
        """Apply the broker's results; return the codes of the receipts that are no longer valid, by message id."""
        lost: dict[str, str] = {}
        is_extension = disposition is Disposition.EXTEND
        with self._changed:
            for result in results:
                held = self._messages.get(result.receipt)
                if held is None:
                    continue
                if is_extension and result.is_ok:
                    held.until, held.extend_at = result.held_until, extension_time(now(), result.held_until)
                elif is_extension and held.may_be_done:
                    held.is_lost = True
                else:
                    del self._messages[result.receipt]
                if not result.is_ok:
                    lost[held.message.id] = result.code
            self._changed.notify_all()
        return lost

    def _return_unstarted(self) -> None:
        for held in self._messages.values():
            if held.can_start:
                held.disposition = Disposition.NOT_ATTEMPTED
