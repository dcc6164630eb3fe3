"""`MailboxReader`: threads that fetch messages, pass each to a handler, and acknowledge them."""

import logging
import random
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import inf
from typing import Final

import requests
from requests.exceptions import InvalidSchema, InvalidURL, MissingSchema

from broker_client.in_flight import Disposition, InFlightMessages
from broker_client.mailbox import TIMEOUT_SECONDS, Mailbox
from broker_client.message import BrokerError, Message, ReceiptResult, now

MAX_MESSAGES: Final = 100
MAX_WAIT_SECONDS: Final = 20
"""Limits of the API."""

FIRST_RETRY_SECONDS: Final = 0.5
MAX_PAUSE_SECONDS: Final = 10.0
"""Also the longest `Retry-After` that is respected: the fault may be over sooner."""
MIN_POLL_SECONDS: Final = 1.0
"""Between two calls to an empty mailbox."""
FIRST_HANDLER_PAUSE_SECONDS: Final = 0.1
MAX_HANDLER_PAUSE_SECONDS: Final = 5.0
"""After a handler that failed: its message is the oldest again and comes back first."""
STOP_SECONDS: Final = 10.0
"""For the last acknowledgements when the reader stops; messages without one can be fetched again."""

Handler = Callable[[Message], object]
"""Processes one message: it is acknowledged when the handler returns, and returned when it raises."""

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Backoff:
    """Pauses that double from `first` to `longest` seconds, each less up to half at random."""

    first: float
    longest: float = MAX_PAUSE_SECONDS
    _next: float = field(default=0.0, init=False)

    def next(self) -> float:
        """Return the seconds to pause after one more failure."""
        length = self._next or self.first
        self._next = min(2 * length, self.longest)
        return length * random.uniform(0.5, 1.0)  # noqa: S311 - no secret

    def reset(self) -> None:
        """Start again with the first pause, after a success."""
        self._next = 0.0


def empty_poll_pause(took: float, retry_after: float | None) -> float:
    """Return the seconds to wait after a call of `took` seconds without messages.

    The broker asks for the same `retry_after` of all waiting clients: a random part keeps them from coming at once.
    """
    asked = (retry_after or 0.0) * random.uniform(1.0, 1.5)  # noqa: S311 - no secret
    return min(max(asked, MIN_POLL_SECONDS - took, 0.0), MAX_PAUSE_SECONDS)


def retry_pause(
    problem: requests.RequestException | BrokerError, backoff: Backoff, *, max_seconds: float = inf
) -> float:
    """Return the seconds to wait before a retry; raise the problem if a retry cannot succeed.

    `Retry-After` only lengthens the back-off: a broker that asks for 0 seconds is not called in a loop.
    """
    asked = 0.0
    if isinstance(problem, InvalidSchema | InvalidURL | MissingSchema):  # of the broker's address
        raise problem
    if isinstance(problem, BrokerError):
        if not problem.is_transient:
            raise problem
        asked = problem.retry_after or 0.0
    seconds = min(max(asked, backoff.next()), max_seconds, MAX_PAUSE_SECONDS)
    log.warning("mailbox.unavailable retry_in=%.1f problem=%s", seconds, problem)
    return seconds


class Acknowledger:
    """Sends the calls that are due, each until it is answered: all of them are safe to repeat."""

    def __init__(self, mailbox: Mailbox, in_flight: InFlightMessages) -> None:
        self._in_flight = in_flight
        self._backoff = Backoff(FIRST_RETRY_SECONDS)
        self._calls: Mapping[Disposition, Callable[..., list[ReceiptResult]]] = {
            Disposition.ACK: mailbox.ack,
            Disposition.NACK: mailbox.nack,
            Disposition.NOT_ATTEMPTED: partial(mailbox.nack, not_attempted=True),
            Disposition.EXTEND: mailbox.extend,
        }

    def run(self) -> None:
        """Send calls until the messages are abandoned; raise `BrokerError` if a retry cannot succeed."""
        while (calls := self._in_flight.wait_for_calls()) is not None:
            try:
                for disposition, receipts in calls.items():
                    timeout = min(TIMEOUT_SECONDS, self._in_flight.call_timeout())
                    results = self._calls[disposition](receipts, timeout=timeout)
                    for message_id, code in self._in_flight.apply_results(disposition, results).items():
                        log.warning("mailbox.receipt_invalid id=%s call=%s code=%s", message_id, disposition, code)
            except (requests.RequestException, BrokerError) as problem:
                max_seconds = self._in_flight.call_timeout()
                self._in_flight.pause(retry_pause(problem, self._backoff, max_seconds=max_seconds))
            else:
                self._backoff.reset()


class Consumer:
    """Fetches messages and passes them to the handler, one after the other."""

    def __init__(
        self,
        mailbox: Mailbox,
        handler: Handler,
        in_flight: InFlightMessages,
        *,
        max_messages: int,
        wait_seconds: float,
    ) -> None:
        self._fetch = partial(mailbox.fetch, max_messages=max_messages, wait_seconds=wait_seconds)
        self._handler = handler
        self._in_flight = in_flight
        self._backoff = Backoff(FIRST_RETRY_SECONDS)
        self._handler_backoff = Backoff(FIRST_HANDLER_PAUSE_SECONDS, MAX_HANDLER_PAUSE_SECONDS)

    def run(self) -> None:
        """Consume until the messages are closed; raise `BrokerError` if a retry cannot succeed."""
        while not self._in_flight.is_closed:
            self._in_flight.add(self._fetch_messages())
            while message := self._in_flight.start_next():
                self._process(message)
            self._in_flight.wait_until_resolved()

    def _fetch_messages(self) -> Sequence[Message]:
        """Fetch messages; if there are none, wait as long as the next call has to wait."""
        asked_at = now()
        try:
            fetched = self._fetch()
        except (requests.RequestException, BrokerError) as problem:
            self._in_flight.rest(retry_pause(problem, self._backoff))
            return []
        self._backoff.reset()
        if not fetched.messages:
            self._in_flight.rest(empty_poll_pause(now() - asked_at, fetched.retry_after))
        return fetched.messages

    def _process(self, message: Message) -> None:
        disposition = Disposition.NACK
        try:
            self._handler(message)
            disposition = Disposition.ACK
        except Exception:
            log.exception("mailbox.handler_failed id=%s redeliveries=%s", message.id, message.redeliveries)
        finally:
            self._in_flight.resolve(message, disposition)
        if disposition is Disposition.ACK:
            self._handler_backoff.reset()
        else:
            self._in_flight.rest(self._handler_backoff.next())


class MailboxReader:
    """Passes the messages of a mailbox to a handler, in `consumers` threads with up to `max_messages` in flight each.

    A message is acknowledged after the handler has returned, extended while it works, and returned when it raises.
    When the reader stops, running handlers finish, and messages that were not started are returned.
    """

    def __init__(
        self,
        mailbox: Mailbox,
        handler: Handler,
        *,
        max_messages: int = 10,
        wait_seconds: float = 20,
        consumers: int = 1,
    ) -> None:
        """Configure a reader; `wait_seconds` is how long the broker is asked to wait for messages.

        Raise ValueError unless `max_messages` is 1 to 100, `wait_seconds` 0 to 20, and `consumers` at least 1.
        """
        if not 1 <= max_messages <= MAX_MESSAGES:
            raise ValueError(f"max_messages is {max_messages}, and must be from 1 to {MAX_MESSAGES}.")
        if not 0 <= wait_seconds <= MAX_WAIT_SECONDS:
            raise ValueError(f"wait_seconds is {wait_seconds}, and must be from 0 to {MAX_WAIT_SECONDS}.")
        if consumers < 1:
            raise ValueError(f"consumers is {consumers}, and must be at least 1.")
        self._mailbox = mailbox
        self._in_flight = [InFlightMessages() for _ in range(consumers)]
        self._consumers = [
            Consumer(mailbox, handler, in_flight, max_messages=max_messages, wait_seconds=wait_seconds)
            for in_flight in self._in_flight
        ]
        self._ended: list[threading.Event] = []
        self._problems: list[BaseException] = []

    def run(self) -> None:
        """Read until `stop` is called or Ctrl-C is pressed; raise what `join` raises.

        The first Ctrl-C is raised when all consumers have ended, a second one at once.
        """
        try:
            self.start()
            self._wait()
        finally:
            self.stop()
            self._wait()
        self.join()

    def start(self) -> None:
        """Start the threads; raise RuntimeError if they were started before: a reader reads once."""
        if self._ended:
            raise RuntimeError("A reader reads once.")
        for consumer, in_flight in zip(self._consumers, self._in_flight, strict=True):
            ended = threading.Event()
            threading.Thread(target=self._consume, args=[consumer, in_flight, ended]).start()
            self._ended.append(ended)

    def stop(self) -> None:
        """Let every consumer finish its message; a call that waits for messages ends first, after `wait_seconds`.

        Safe from any thread and from a signal handler.
        """
        for in_flight in self._in_flight:
            in_flight.close()

    def join(self) -> None:
        """Wait until all consumers have ended; raise the first unexpected error, for example a `BrokerError` 401."""
        self._wait()
        if self._problems:
            raise self._problems[0]

    def holds(self, message: Message) -> bool:
        """Return whether no other client has the message: a long handler can check it, and give up."""
        return any(in_flight.holds(message) for in_flight in self._in_flight)

    def _wait(self) -> None:
        """Wait for events, not threads: an interrupted `Thread.join` takes its thread for ended."""
        for ended in self._ended:
            ended.wait()

    def _consume(self, consumer: Consumer, in_flight: InFlightMessages, ended: threading.Event) -> None:
        # Ctrl-C may end `start` before it knows of this thread. Unless it is stopped by then, it is waited for.
        self._ended.append(ended)
        try:
            self._run(partial(self._consume_and_acknowledge, consumer, in_flight), at_end=self.stop)
        finally:
            ended.set()

    def _consume_and_acknowledge(self, consumer: Consumer, in_flight: InFlightMessages) -> None:
        """Run a consumer, and its acknowledger in a thread beside it. If either ends, all consumers do."""
        acknowledger = Acknowledger(self._mailbox, in_flight)
        thread = threading.Thread(target=self._run, args=[acknowledger.run, in_flight.abandon])
        thread.start()
        try:
            consumer.run()
        finally:
            self.stop()
            if not in_flight.abandon(STOP_SECONDS):
                log.warning("mailbox.not_acknowledged")
            thread.join()

    def _run(self, act: Callable[[], None], at_end: Callable[[], object]) -> None:
        """Run a thread's work; keep what it raises for `join`, `SystemExit` too."""
        try:
            act()
        except BaseException as problem:
            log.exception("mailbox.reader_failed")
            self._problems.append(problem)
        finally:
            at_end()
            self._mailbox.close()
