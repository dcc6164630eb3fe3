"""Whatever policies admins choose and change under load, and however often they pause: all arrives once, in order."""

import threading
from collections.abc import Callable, Iterator

import pytest
import requests

from broker_project.stack.demo.records import inverted
from tests.faults.books import by_status
from tests.faults.exchanges import extra_copies, first_sent, misnumbered
from tests.faults.figures import Report, renamed
from tests.faults.load import AFTERWARDS, THROUGH_SECONDS, Load
from tests.faults.measuring import unharmed
from tests.faults.refusing import Refusing
from tests.faults.verdicts import Verdict
from tests.real_broker import TIMEOUT, Broker
from tests.receiver import wait_until

EVERY = 0.5
"""Seconds from edit to edit: some requests fail under each policy."""
ROUNDS = 3
SHORT = {"initial_delay_seconds": 0.3, "max_delay_seconds": 0.6, "factor": 2.0, "jitter": 0.0}
FAILURES = ("on_throttled", "on_unavailable", "on_server_error", "on_no_answer")
APART = SHORT | dict.fromkeys(FAILURES, "RETRY_LANE")
HOLDING = SHORT | dict.fromkeys(FAILURES, "HOLD")
SUSPENDING = HOLDING | {"max_retries": 0, "on_exhausted": "SUSPEND", "probe_seconds": 1.0}
OWN_LINES = 2
"""Requests under way to one subscriber at most: of its line, and of its retry line."""

Edit = Callable[[], None]


class Editor:
    """Somebody who changes policies, and which one is followed, through the API; none of them gives anything up."""

    def __init__(self, broker: Broker, subscriber: str) -> None:
        self._broker = broker
        self._subscriptions = [one["id"] for one in broker.get("subscriptions", subscriber=subscriber)["items"]]
        self._policies = [broker.retry_policy(**terms) for terms in (APART, HOLDING, SUSPENDING)]

    def edits(self) -> Iterator[Edit]:
        """Return one round of edits, each to be made a moment after the other; at the end nothing is paused."""
        apart, holding, suspending = self._policies
        one, other = self._subscriptions
        yield lambda: self.follow(one, apart)
        yield lambda: self.follow(other, suspending)
        yield lambda: self.change(apart, on_server_error="DEFER")
        yield lambda: self.follow(one, suspending)
        yield lambda: self.pause(other)
        yield lambda: self.change(suspending, max_retries=1, initial_delay_seconds=0.2)
        yield lambda: self.follow(other, holding)
        yield lambda: self.change(holding, on_unavailable="RETRY_LANE")
        yield lambda: self.resume(other)
        yield lambda: self.follow(one, None)
        yield lambda: self.change(suspending, max_retries=0, initial_delay_seconds=0.3)
        yield lambda: self.follow(other, apart)
        yield lambda: self.change(apart, on_server_error="RETRY_LANE")
        yield lambda: self.pause(one)
        yield lambda: self.change(holding, on_unavailable="HOLD")
        yield lambda: self.resume(one)

    def follow(self, subscription: int, policy: str | None) -> None:
        self._api("PATCH", f"subscriptions/{subscription}", retry_policy=policy)

    def change(self, policy: str, **terms: object) -> None:
        self._api("PATCH", f"retry-policies/{policy}", **terms)

    def pause(self, subscription: int) -> None:
        self._api("POST", f"subscriptions/{subscription}/pause", reason="to see what happens")

    def resume(self, subscription: int) -> None:
        self._api("POST", f"subscriptions/{subscription}/resume")

    def _api(self, method: str, path: str, **fields: object) -> None:
        headers = {"Authorization": f"Bearer {self._broker.management.token}", "If-Match": "*"}
        address = f"{self._broker.web}/api/v1/{path}"
        answer = requests.request(method, address, json=fields, headers=headers, timeout=TIMEOUT)
        assert answer.ok, answer.text


@pytest.mark.behaviour("1.6", "4.9", "4.15")
@pytest.mark.behaviour("4.10", "5.1", "5.6")
@pytest.mark.case("policy-edits")
def test_admins_change_policies_under_load(load: Load, figures: Report, verdict: Verdict) -> None:
    has_healed = threading.Event()
    endpoint = Refusing(
        "edited",
        load.receiver,
        times=lambda number: number % 10 < 2 and not has_healed.is_set(),
        status=lambda number: 500 if number % 2 else 503,
    )
    edited = load.broker.subscribe(load.receiver.url("/edited"), *load.event_types)
    editor, pace = Editor(load.broker, edited.name), threading.Event()
    load.start()
    with unharmed(load.broker, verdict):
        for edit in [edit for _ in range(ROUNDS) for edit in editor.edits()]:
            edit()
            pace.wait(EVERY)
        has_healed.set()  # what waits is through soon: a line that is held waits a second each time
        load.wait_for(AFTERWARDS)
        seen = figures()
        wait_until(
            lambda: load.broker.has_finished([edited]),
            THROUGH_SECONDS,
            saying=lambda: load.broker.get(f"subscribers/{edited.name}/line"),
        )

    events = {event.number: event for publisher in load.publishers for event in publisher.published}
    first = [events[one.number] for one in first_sent(endpoint.exchanges)]
    by_type = [[event for event in first if event.type == kind] for kind in load.event_types]
    verdict.measured["tried_again"] = len(endpoint.exchanges) - len(first)
    assert (seen.broken, seen.duplicated) == ({}, 0)
    assert endpoint.accepted() == events.keys() == by_status(load.broker, edited)["DELIVERED"].keys()
    assert [*extra_copies(endpoint.exchanges)] == []
    assert not any(one.flagged or one.altered for one in endpoint.exchanges)
    assert renamed({"edited": endpoint.exchanges}) == 0
    assert (misnumbered(endpoint.exchanges), sum(map(inverted, by_type))) == (0, 0)
    assert load.receiver.most_at_once["/edited"] <= OWN_LINES
