"""`MailboxReader`: threads that fetch messages, give each to a handler, and answer for it."""

import logging
import random
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import inf
from typing import Final

import requests

from broker_client.clock import now
from broker_client.in_flight import Hand
from broker_client.mailbox import MAX_CALL, Mailbox
from broker_client.message import Message, Refused, Result
from broker_client.schedule import Word

MAX_PAUSE: Final = 10.0
"""However long the broker, or a proxy before it, asks for: whatever was the matter may be over."""
EMPTY_SECONDS: Final = 1.0
"""An empty mailbox is asked again no sooner than so long after it was asked."""

log = logging.getLogger(__name__)

FIRST_PAUSE: Final = 0.5

FIRST_REST: Final = 0.1
MAX_REST: Final = 5.0
"""After a message that was not done: it is the oldest again, and comes back first."""

MAX_MESSAGES: Final = 100
MAX_WAIT: Final = 20
"""What the broker allows."""

Handler = Callable[[Message], object]
"""Works on one message; the message is done when it returns, and goes back to the mailbox when it raises."""

END_SECONDS: Final = 10.0
"""How long the last answers may take when the reader stops; what is not answered by then is handed out again."""


@dataclass(slots=True)
class Pauses:
    """From the first pause to the longest, each twice as long, less up to half by chance: not all come at once."""

    first: float
    longest: float = MAX_PAUSE
    _next: float = field(default=0.0, init=False)

    def next(self) -> float:
        """Return the seconds to pause after one more failure."""
        length = self._next or self.first
        self._next = min(2 * length, self.longest)
        return length * random.uniform(0.5, 1.0)  # noqa: S311 - no secret

    def reset(self) -> None:
        """Begin again with the first: it went well."""
        self._next = 0.0


def rest_of_nothing(took: float, wanted: float | None) -> float:
    """Return the seconds to wait after a call that took so long and brought nothing; the broker may want some.

    What it wants it wants of all that came in vain: so not all come again at once.
    """
    asked = (wanted or 0.0) * random.uniform(1.0, 1.5)  # noqa: S311 - no secret
    return min(max(asked, EMPTY_SECONDS - took, 0.0), MAX_PAUSE)


class Keeper:
    """Says what is due of a hand, again and again until it is answered: all of it can be said twice."""

    def __init__(self, mailbox: Mailbox, hand: Hand) -> None:
        self._hand = hand
        self._pauses = Pauses(FIRST_PAUSE)
        self._calls: Mapping[Word, Callable[..., list[Result]]] = {
            Word.ACK: mailbox.ack,
            Word.NACK: mailbox.nack,
            Word.NOT_ATTEMPTED: partial(mailbox.nack, not_attempted=True),
            Word.EXTEND: mailbox.extend,
        }

    def run(self) -> None:
        """Speak until the hand is closed and empty; raise `Refused` where trying again is of no use."""
        while (due := self._hand.due()) is not None:
            try:
                for word, receipts in due.items():
                    self._say(word, receipts)
            except (requests.RequestException, Refused) as problem:
                self._hand.pause(pause_after(problem, self._pauses, longest=self._hand.patience()))
            else:
                self._pauses.reset()

    def _say(self, word: Word, receipts: Sequence[str]) -> None:
        results = self._calls[word](receipts, within=min(MAX_CALL, self._hand.patience()))
        for message_id, code in self._hand.answered(word, results).items():
            log.warning("mailbox.not_ours id=%s word=%s code=%s", message_id, word, code)


def pause_after(problem: requests.RequestException | Refused, pauses: Pauses, *, longest: float = inf) -> float:
    """Return the seconds to wait before trying again, `MAX_PAUSE` at most; raise the problem if that is of no use.

    Never less than if nothing was asked for, unless there is less time: else whoever asks for nothing would be called
    in a loop.
    """
    wanted = 0.0
    if isinstance(problem, Refused):
        if not problem.passes:
            raise problem
        wanted = problem.retry_after or 0.0
    seconds = min(max(wanted, pauses.next()), longest, MAX_PAUSE)
    log.warning("mailbox.unavailable again_in=%.1f problem=%s", seconds, problem)
    return seconds


@dataclass(frozen=True, slots=True)
class Terms:
    """How to fetch; ValueError where the broker would not have it."""

    most: int
    """Messages in hand."""

    wait: float
    """Seconds that the broker is asked to wait for some."""

    def __post_init__(self) -> None:
        _check("most", self.most, 1, MAX_MESSAGES)
        _check("wait", self.wait, 0, MAX_WAIT)


class Worker:
    """Works messages off in order."""

    def __init__(self, mailbox: Mailbox, handler: Handler, terms: Terms, hand: Hand) -> None:
        self._mailbox = mailbox
        self._handler = handler
        self._terms = terms
        self._hand = hand
        self._pauses = Pauses(FIRST_PAUSE)
        self._rests = Pauses(FIRST_REST, MAX_REST)

    def run(self) -> None:
        """Work until the hand is closed; raise `Refused` where trying again is of no use."""
        while not self._hand.is_closed:
            self._hand.take(self._fetched())
            while message := self._hand.begin():
                self._work_on(message)
            self._hand.wait_until_answered()

    def _fetched(self) -> Sequence[Message]:
        """Fetch; where nothing can be fetched, wait as long as is right before the next time."""
        asked_at = now()
        try:
            fetched = self._mailbox.next(most=self._terms.most, wait=self._terms.wait)
        except (requests.RequestException, Refused) as problem:
            self._hand.rest(pause_after(problem, self._pauses))
            return []
        self._pauses.reset()
        if not fetched.messages:
            self._hand.rest(rest_of_nothing(now() - asked_at, fetched.retry_after))
        return fetched.messages

    def _work_on(self, message: Message) -> None:
        word = Word.NACK
        try:
            self._handler(message)
            word = Word.ACK
        except Exception:
            log.exception("mailbox.not_done id=%s redeliveries=%s", message.id, message.redeliveries)
        finally:
            self._hand.say(message, word)
        if word is Word.ACK:
            self._rests.reset()
        else:
            self._hand.rest(self._rests.next())


def _check(name: str, value: float, least: int, most: int) -> None:
    if not least <= value <= most:
        raise ValueError(f"{name} is {value}, and may be from {least} to {most}.")


class MailboxReader:
    """Hands the messages of a mailbox to a handler, in `consumers` threads; each has up to `most` in hand.

    A message is acknowledged after the handler has returned, extended while it works, and returned when it raises.
    When the reader stops, what is being worked on is finished, and what was not begun is returned.
    """

    def __init__(
        self, mailbox: Mailbox, handler: Handler, *, most: int = 10, wait: float = 20, consumers: int = 1
    ) -> None:
        """Read nothing yet; `wait` is how many seconds the broker is asked to wait for messages.

        Raise ValueError unless `most` is from 1 to 100, `wait` from 0 to 20, and there is a consumer at least.
        """
        if consumers < 1:
            raise ValueError(f"consumers is {consumers}, and must be at least 1.")
        self._mailbox = mailbox
        self._handler = handler
        self._terms = Terms(most, wait)
        self._hands = [Hand() for _ in range(consumers)]
        self._ends: list[threading.Event] = []
        self._problems: list[BaseException] = []

    def run(self) -> None:
        """Read until somebody calls `stop`, or Ctrl-C is pressed; raise what `join` raises.

        Ctrl-C is raised when all consumers have ended; pressed once more, at once.
        """
        try:
            self.start()
            self._wait()
        finally:
            self.stop()
            self._wait()
        self.join()

    def start(self) -> None:
        """Begin to read; raise RuntimeError if it has begun already: a reader reads once."""
        if self._ends:
            raise RuntimeError("A reader reads once.")
        for hand in self._hands:
            ended = threading.Event()
            threading.Thread(target=self._consume, args=[hand, ended]).start()
            self._ends.append(ended)

    def stop(self) -> None:
        """Let every consumer finish what it works on; a call that waits for messages ends first, after `wait` seconds.

        May be called by anybody at any time, a handler of signals among them.
        """
        for hand in self._hands:
            hand.close()

    def join(self) -> None:
        """Wait until all consumers have ended; raise what has ended one of them unasked, as `Refused` with 401."""
        self._wait()
        if self._problems:
            raise self._problems[0]

    def holds(self, message: Message) -> bool:
        """Whether a message that the handler works on is surely nobody else's: what takes long may ask, and give up."""
        return any(hand.holds(message) for hand in self._hands)

    def _wait(self) -> None:
        """Wait for what the consumers say themselves: a thread is taken for ended once a wait for it is interrupted."""
        for ended in self._ends:
            ended.wait()

    def _consume(self, hand: Hand, ended: threading.Event) -> None:
        try:
            self._noted(partial(self._work, hand), self.stop)
        finally:
            ended.set()

    def _work(self, hand: Hand) -> None:
        """Be one consumer: a worker, and a keeper beside it. If one of them ends, all consumers do."""
        keeper = threading.Thread(target=self._noted, args=[Keeper(self._mailbox, hand).run, hand.abandon])
        keeper.start()
        try:
            Worker(self._mailbox, self._handler, self._terms, hand).run()
        finally:
            self.stop()
            if not hand.abandon(END_SECONDS):
                log.warning("mailbox.not_answered")
            keeper.join()

    def _noted(self, act: Callable[[], None], at_the_end: Callable[[], object]) -> None:
        """Act in a thread of its own; note what it raises, `SystemExit` too, for whoever waits."""
        try:
            act()
        except BaseException as problem:
            log.exception("mailbox.ended")
            self._problems.append(problem)
        finally:
            at_the_end()
            self._mailbox.close()
