"""What one consumer holds, shared by its worker and its keeper."""

import logging
import threading
from collections.abc import Iterable, Mapping, Sequence

from broker_client.clock import now
from broker_client.message import Message, Result
from broker_client.schedule import Held, Word, dues, next_due, patience, times

log = logging.getLogger(__name__)


class Hand:
    """The messages that a consumer holds, oldest first."""

    def __init__(self) -> None:
        self._held: dict[str, Held] = {}
        self._changed = threading.Condition()
        self._quiet_until = 0.0
        self._is_closed = False
        self._is_over = False

    @property
    def is_closed(self) -> bool:
        """Whether nothing is begun any more."""
        return self._is_closed

    def holds(self, message: Message) -> bool:
        """Whether a message is in hand, and surely nobody else's."""
        with self._changed:
            held = self._held.get(message.receipt)
            return held is not None and not held.is_lost and held.until > now()

    # --- of the worker ---------------------------------------------------------------------------------------------

    def take(self, messages: Iterable[Message]) -> None:
        """Hold what was fetched just now; return it, if the hand was closed meanwhile."""
        with self._changed:
            self._held |= {each.receipt: Held.since(now(), each) for each in messages}
            if self._is_closed:
                self._return_the_rest()
            self._changed.notify_all()

    def begin(self) -> Message | None:
        """Return the next message, to be worked on; None if there is none.

        What may have gone to somebody else meanwhile is not begun: it is let go.
        """
        with self._changed:
            for held in [one for one in self._held.values() if one.is_waiting]:
                if held.until > now():
                    held.is_begun = True
                    return held.message
                held.word, held.known_at = Word.NOT_ATTEMPTED, now()
                log.warning("mailbox.let_go id=%s", held.message.id)
            self._changed.notify_all()
            return None

    def say(self, message: Message, word: Word) -> None:
        """Have it said that a message is done, or that it is not; of what is lost only the former, for it may count."""
        with self._changed:
            if held := self._held.get(message.receipt):
                held.word, held.known_at = word, now()
                if held.is_lost and not held.may_be_done:
                    del self._held[message.receipt]
            self._changed.notify_all()

    def rest(self, seconds: float) -> None:
        """Do nothing for a while, unless the hand is closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_closed, seconds)

    def wait_until_answered(self) -> None:
        """Wait until all that is known has been said, unless the hand is closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_closed or not self._held)

    # --- at the end ------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Begin nothing any more: return what was not begun."""
        with self._changed:
            self._is_closed = True
            self._return_the_rest()
            self._changed.notify_all()

    def abandon(self, seconds: float = 0.0) -> bool:
        """Hold nothing any more; say whether all has been said by then, for which there is some time."""
        with self._changed:
            was_all_said = self._changed.wait_for(lambda: not self._held, seconds)
            self._held.clear()
            self._is_closed = self._is_over = True
            self._changed.notify_all()
            return was_all_said

    # --- of the keeper ---------------------------------------------------------------------------------------------

    def due(self) -> Mapping[Word, Sequence[str]] | None:
        """Wait until something is to be said, and return it, as receipts; None once the hand is abandoned."""
        with self._changed:
            while not self._is_over:
                at = now()
                if at >= self._quiet_until and (found := dues(self._held.values(), at)):
                    return found
                moment = next_due(self._held.values())
                self._changed.wait(None if moment is None else max(self._quiet_until, moment) - at)
            return None

    def pause(self, seconds: float) -> None:
        """Say nothing for a while."""
        with self._changed:
            self._quiet_until = now() + seconds

    def patience(self) -> float:
        """Return for how many seconds a call may go without an answer, or a pause may last, by what is in hand."""
        with self._changed:
            return patience(self._held.values(), now())

    def answered(self, word: Word, results: Iterable[Result]) -> dict[str, str]:
        """Note what was answered just now; return why some messages are not ours, by their ids."""
        lost: dict[str, str] = {}
        with self._changed:
            for result in results:
                if held := self._held.get(result.receipt):
                    self._note(held, word, result)
                    if not result.is_good:
                        lost[held.message.id] = result.code
            self._changed.notify_all()
        return lost

    def _note(self, held: Held, word: Word, result: Result) -> None:
        if word is Word.EXTEND and result.is_good:
            held.until, held.extend_at = times(now(), result.held_until)
        elif word is Word.EXTEND and held.may_be_done:
            held.is_lost = True
        else:
            del self._held[result.receipt]

    def _return_the_rest(self) -> None:
        for held in self._held.values():
            if held.is_waiting:
                held.word = Word.NOT_ATTEMPTED
