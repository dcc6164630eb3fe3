"""Workers killed while messages wait for their time, or run out of it: none comes early, none comes late."""

import dataclasses
import itertools
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

import pytest
import requests

from broker_project.stack.demo.records import Published
from tests.faults.books import by_status, untold_gaps
from tests.faults.endpoints import Endpoint, body_of
from tests.faults.exchanges import TRAVEL_SECONDS, Exchange, first_sent
from tests.faults.figures import Report
from tests.faults.figures import figures as figures_of
from tests.faults.killing import kill_again_and_again
from tests.faults.load import THROUGH_SECONDS, Load
from tests.faults.verdicts import Verdict
from tests.real_broker import TIMEOUT, Broker
from tests.receiver import wait_until

EACH = 30
"""Events of each kind, before the endpoint works and after."""
KILLS = 3
LATER_SECONDS = 4.0
SHORT_SECONDS = 6
"""No kill is over so soon: what lives no longer expires while the endpoint is down."""
LONG_SECONDS = 600


@dataclass(frozen=True, slots=True)
class Timed:
    """An event, and when it may be sent; times are monotonic, of the same machine as the broker's clock."""

    event: Published
    begins: float = 0.0
    ends: float = float("inf")

    def is_out_of_time(self, request: Exchange) -> bool:
        """Say whether a request came before its time, or left after it."""
        return request.at < self.begins or request.at > self.ends + TRAVEL_SECONDS


class Announcer:
    """Publishes one event after the other, each of a kind of its own."""

    def __init__(self, broker: Broker, event_type: str) -> None:
        self._type = event_type
        self._address = f"{broker.web}/api/v1/events/{event_type}"
        self._session = broker.publisher()
        self._numbers: Iterator[int] = itertools.count(1)

    def publish(self, count: int, lives: int) -> list[Timed]:
        """Publish so many of each kind, in turn: at any time, later, and within so many seconds."""
        return [one for _ in range(count) for one in (self._plain(), self._delayed(), self._living(lives))]

    def _plain(self) -> Timed:
        return Timed(self._publish({}))

    def _delayed(self) -> Timed:
        begins = time.monotonic() + LATER_SECONDS
        moment = datetime.fromtimestamp(time.time() + LATER_SECONDS, UTC)
        return Timed(self._publish({"Broker-Not-Before": moment.isoformat()}), begins=begins)

    def _living(self, seconds: int) -> Timed:
        event = self._publish({"Broker-TTL": str(seconds)})
        return Timed(event, ends=event.ended + seconds)

    def _publish(self, terms: dict[str, str]) -> Published:
        number, started = next(self._numbers), time.monotonic()
        headers = {"Content-Type": "application/json"} | terms
        answer: requests.Response = self._session.post(self._address, body_of(number), headers=headers, timeout=TIMEOUT)
        answer.raise_for_status()
        return Published(number, self._type, "", "", started, time.monotonic(), 0, 1)


@pytest.mark.behaviour("11.3")
@pytest.mark.behaviour("2.10", "2.13", "4.15")
@pytest.mark.case("delayed-and-expiring")
def test_workers_are_killed_while_messages_wait_for_their_time_or_run_out_of_it(
    load: Load, figures: Report, verdict: Verdict
) -> None:
    event_type = load.broker.event_type()
    endpoint = Endpoint("timed", load.receiver)
    subscribed = load.broker.subscribe(load.receiver.url("/timed"), event_type)
    announcer = Announcer(load.broker, event_type)
    load.start()
    endpoint.is_busy = True
    early = announcer.publish(EACH, SHORT_SECONDS)
    doomed = {one.event.number for one in early if one.ends < float("inf")}
    kill_again_and_again(load, KILLS)
    wait_until(lambda: by_status(load.broker, subscribed).get("EXPIRED", {}).keys() >= doomed, THROUGH_SECONDS)
    endpoint.is_busy = False
    late = announcer.publish(EACH, LONG_SECONDS)
    kill_again_and_again(load, KILLS)
    seen = figures()
    wait_until(lambda: load.broker.has_finished([subscribed]), THROUGH_SECONDS)

    timed = {one.event.number: one for one in (*early, *late)}
    through = [one for one in timed.values() if one.event.number not in doomed]
    in_order = {one.event.number: one.event for one in through if not one.begins}
    own = figures_of(in_order.values(), timed.keys(), {"timed": endpoint.exchanges}, faults=load.faults)
    numbers = [one.sequence for one in first_sent(endpoint.exchanges)]
    gaps = untold_gaps(load.broker, subscribed, numbers)
    own = dataclasses.replace(own, misnumbered=len(gaps), recovered=0)
    verdict.figures += own
    verdict.measured["out_of_time"] = sum(timed[one.number].is_out_of_time(one) for one in endpoint.exchanges)
    ended = by_status(load.broker, subscribed)
    assert (seen.broken, own.broken, verdict.measured["out_of_time"]) == ({}, {}, 0)
    assert numbers == sorted({*numbers})
    assert ended["EXPIRED"].keys() == doomed
    assert ended["DELIVERED"].keys() == {one.event.number for one in through} == endpoint.accepted()
    assert own.most_of_a_fault <= 1
