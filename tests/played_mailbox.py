"""A mailbox that is played in this process, by its rules, and fails as it is told."""

import threading
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from broker_client.clock import now
from tests.played_answers import LOST, STALE, Trouble, message_document
from tests.receiver import PATIENCE


@dataclass(frozen=True, slots=True)
class Call:
    what: str
    document: Any
    at: float = field(default_factory=now)


class PlayedMailbox:
    """Messages are handed out in order, returned to the head, and known for good once acknowledged."""

    def __init__(self) -> None:
        self.url = ""
        self.seconds = 30.0
        """The time-out; a hand-out is not taken back when it is over."""
        self.clock_is_ahead = timedelta()
        """That of the database, which says until when; that of the web server, which says `Date`, goes right."""
        self.waited = 0.0
        """Seconds for which a call has waited for its messages, as it says."""
        self.is_over = False
        """Whether nobody has to wait for messages any more."""
        self.calls: list[Call] = []
        self.acknowledged: list[int] = []
        self.troubles: defaultdict[str, deque[Trouble | None]] = defaultdict(deque)
        self._available: deque[dict[str, Any]] = deque()
        self._in_flight: dict[str, dict[str, Any]] = {}
        self._hand_outs = 0
        self._changed = threading.Condition()

    # --- of the test ------------------------------------------------------------------------------------------------

    def put(self, *bodies: bytes) -> None:
        """Make messages available, numbered from 1."""
        with self._changed:
            for body in bodies:
                number = len(self._available) + len(self._in_flight) + len(self.acknowledged) + 1
                self._available.append(message_document(number, body))
            self._changed.notify_all()

    def take_back(self, receipt: str) -> None:
        """Let a receipt be stale: somebody else has the message."""
        with self._changed:
            del self._in_flight[receipt]

    def said(self, what: str) -> list[Any]:
        """Return what was sent with the calls of one kind."""
        return [call.document for call in self.calls if call.what == what]

    def end(self) -> None:
        """Let nobody wait for messages any more."""
        with self._changed:
            self.is_over = True
            self._changed.notify_all()

    def wait_for(self, condition: Callable[[], object]) -> None:
        """Wait until something holds of the calls that came."""
        with self._changed:
            assert self._changed.wait_for(condition, PATIENCE), self.calls

    # --- of the client ----------------------------------------------------------------------------------------------

    def answer(self, what: str, document: Any) -> Trouble | None:
        """Do what is asked; return the answer, or None where it gets lost."""
        with self._changed:
            self.calls.append(Call(what, document))
            self._changed.notify_all()
            try:
                trouble = self.troubles[what].popleft() if self.troubles[what] else Trouble(0)
                if trouble and trouble.status:
                    return trouble
                right = getattr(self, f"_{what}")(document)
                return right if trouble else LOST
            finally:
                self._changed.notify_all()

    def _next(self, document: Any) -> Trouble:
        self._changed.wait_for(lambda: self._available or self.is_over, document["wait"])
        messages = [self._handed_out() for _ in range(min(document["max"], len(self._available)))]
        return Trouble(200, {"messages": messages, "waited_seconds": self.waited}) if messages else Trouble(204)

    def _ack(self, document: Any) -> Trouble:
        return self._results(
            document["receipts"], "acknowledged", lambda one: self.acknowledged.append(one["message_id"])
        )

    def _nack(self, document: Any) -> Trouble:
        return self._results(document["receipts"], "returned", self._available.appendleft)

    def _extend(self, document: Any) -> Trouble:
        extended = {"code": "extended", "status": 200, **self._time_out()}
        known = self._in_flight
        return Trouble(
            200,
            {"results": [{"receipt": one} | (extended if one in known else STALE) for one in document["receipts"]]},
        )

    def _status(self, _: Any) -> Trouble:
        return Trouble(200, {"available": len(self._available), "in_flight": len(self._in_flight)})

    def _purge(self, _: Any) -> Trouble:
        cancelled = len(self._available)
        self._available.clear()
        return Trouble(200, {"cancelled": cancelled, "in_flight": len(self._in_flight), "complete": True})

    def _results(self, receipts: Sequence[str], code: str, end: Callable[[dict[str, Any]], object]) -> Trouble:
        results: list[dict[str, object]] = []
        for receipt in receipts:
            known = self._in_flight.pop(receipt, None)
            if known:
                end(known)
            results.append({"receipt": receipt} | ({"status": 200, "code": code} if known else STALE))
        return Trouble(200, {"results": results})

    def _handed_out(self) -> dict[str, Any]:
        self._hand_outs += 1
        receipt, document = f"receipt-{self._hand_outs}", self._available.popleft()
        self._in_flight[receipt] = document
        return document | {"receipt": receipt, **self._time_out()}

    def _time_out(self) -> dict[str, Any]:
        until = datetime.now(UTC) + self.clock_is_ahead + timedelta(seconds=self.seconds)
        return {"in_flight_until": until.isoformat().replace("+00:00", "Z"), "in_flight_seconds": self.seconds}
