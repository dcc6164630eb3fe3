"""Somebody who publishes volatile messages, and what the broker counts of them."""

import itertools
import threading

import requests

from tests.real_broker import TIMEOUT, Broker

PUBLISH_EVERY = 0.005
CUT_OFF = 0
"""What stands for no answer at all."""

COUNTS = """
    SELECT subscription_id, sum(accepted)::int, sum(delivered)::int,
           sum(filtered + refused + no_answer + not_allowed + skipped + expired + dropped + lost)::int
    FROM delivery_volatilecount count JOIN subscriptions_eventtype event_type ON event_type.id = count.event_type_id
    WHERE event_type.name = %(event_type)s GROUP BY subscription_id
"""
STORED = """
    SELECT count(*)::int FROM delivery_message message JOIN subscriptions_eventtype event_type
        ON event_type.id = message.event_type_id WHERE event_type.name = %(event_type)s
"""


class Publishing(threading.Thread):
    """Publishes one numbered volatile message after the other."""

    def __init__(self, broker: Broker, event_type: str, *, every: float = PUBLISH_EVERY) -> None:
        super().__init__(daemon=True)
        self._address = f"{broker.web}/api/v1/events/{event_type}"
        self._session = broker.publisher()
        self._session.headers["Broker-Durability"] = "volatile"
        self._every = every
        self.answers: list[int] = []
        """The status that each number was answered with."""
        self.enough = threading.Event()

    def run(self) -> None:
        for number in itertools.count():
            if self.enough.wait(self._every):
                return
            self.answers.append(self._status_of(number))

    def _status_of(self, number: int) -> int:
        try:
            return self._session.post(self._address, json={"number": number}, timeout=TIMEOUT).status_code
        except requests.RequestException:
            return CUT_OFF

    def stop(self) -> None:
        self.enough.set()
        self.join(TIMEOUT)
