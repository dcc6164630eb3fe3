"""Admins edit subscriptions and retry policies under load."""

import dataclasses
import threading
import time
from collections.abc import Iterator, Mapping, Sequence

import pytest

from broker_project.stack.load.exchanges import Published, inverted
from broker_project.stack.load.receiver import Received
from broker_project.stack.load.wait import wait_until
from tests.support.faults.audit import by_status
from tests.support.faults.edits import Admins, Edit
from tests.support.faults.endpoints import Endpoint, RefusingEndpoint
from tests.support.faults.exchanges import extra_copies, first_sent, misnumbered, out_of_order
from tests.support.faults.figures import Figures, Report, renamed
from tests.support.faults.figures import figures as figures_of
from tests.support.faults.load import AFTERWARDS, Load
from tests.support.faults.verdicts import Verdict, unharmed
from tests.support.real_broker import Broker

ADMIN_EDIT_ROUNDS = 2
ADMIN_EDIT_SECONDS = 1.0
"""Seconds from edit to edit."""
CHECKED_SECONDS = 0.25
"""How long before it starts a request may be checked against the configuration, at most, on a busy machine."""

POLICY_EDIT_SECONDS = 0.5
"""Seconds from edit to edit: some requests fail under each policy."""
POLICY_EDIT_ROUNDS = 3
SHORT = {"initial_delay_seconds": 0.3, "max_delay_seconds": 0.6, "factor": 2.0, "jitter": 0.0}
FAILURES = ("on_throttled", "on_unavailable", "on_server_error", "on_no_answer")
APART = SHORT | dict.fromkeys(FAILURES, "RETRY_LANE")
HOLDING = SHORT | dict.fromkeys(FAILURES, "HOLD")
SUSPENDING = HOLDING | {"max_retries": 0, "on_exhausted": "SUSPEND", "probe_seconds": 1.0}
OWN_LINES = 2
"""Requests under way to one subscriber at most: of its line, and of its retry line."""


def edit_every_second(admins: Admins) -> None:
    """Make every edit some times, at an even pace."""
    pace, begun = threading.Event(), time.monotonic()
    edits = [edit for _ in range(ADMIN_EDIT_ROUNDS) for edit in admins.edits()]
    for number, edit in enumerate(edits):
        pace.wait(begun + number * ADMIN_EDIT_SECONDS - time.monotonic())
        edit()


def judged(load: Load, admins: Admins, endpoint: Endpoint) -> Figures:
    """Judge the edited line: an event must arrive if it certainly matched, and must not if it certainly did not."""
    events = load.published()
    unwanted = [number for number, event in events.items() if admins.qualified(event) == {False}]
    came = endpoint.accepted().difference(unwanted)
    wanted = {number: event for number, event in events.items() if number in came or admins.qualified(event) == {True}}
    line = {endpoint.name: endpoint.exchanges}
    assert len(wanted) > len(unwanted) > 0
    made = figures_of(wanted, load.begun().difference(unwanted), line)
    return dataclasses.replace(made, inverted=inversions(events, admins, endpoint))


def inversions(events: Mapping[int, Published], admins: Admins, endpoint: Endpoint) -> int:
    """Count what overtook in its own subscription, and in the line but for what was skipped (contract 4.10)."""
    skipped = {one.number for one in first_sent(endpoint.exchanges) if admins.was_skipped(events[one.number], one.at)}
    straight = [one for one in endpoint.exchanges if one.number not in skipped]
    kinds = [[one for one in endpoint.exchanges if events[one.number].type == kind] for kind in admins.subscriptions]
    return sum(out_of_order(line, events) for line in (straight, *kinds))


def outdated(admins: Admins, requests: Sequence[Received], answered: Sequence[float], root: str) -> int:
    """Count the requests that were not as the subscription was when they started.

    To the second they say when; and a line marks the next only when the one before has been answered.
    """
    offset = time.time() - time.monotonic()
    count = 0
    for request, before in zip(requests, [0.0, *answered[:-1]], strict=True):
        second = int(request.headers["webhook-timestamp"]) - offset
        then = (max(before, second - CHECKED_SECONDS), min(second + 1, request.begun))
        one = admins.subscriptions[request.headers["broker-event-type"]]
        is_wanted = True in one.is_active.between(*then) and True in admins.is_active.between(*then)
        count += not (is_wanted and one.may_have_sent(request, root + request.path, then))
    return count


@pytest.mark.case("admins-edit-every-second")
@pytest.mark.behaviour("1.7", "3.7", "4.9", "4.10", "4.15")
def test_admins_edit_every_second(load: Load, figures: Report, verdict: Verdict) -> None:
    here, there = "/edited", "/edited/elsewhere"
    addresses = (load.receiver.url(here), load.receiver.url(there))
    endpoint = Endpoint("edited", load.receiver, fails=lambda number: number % 20 == 0)
    load.receiver.on(there, endpoint)
    edited = load.broker.subscribe(addresses[0], *load.event_types)
    admins = Admins(load, edited.name, edited.secrets, addresses)
    load.start()
    load.note_fault()
    with unharmed(load.broker, verdict):
        edit_every_second(admins)
        seen = figures()
        wait_until(lambda: load.broker.has_finished([edited]))
    assert (seen.broken, seen.duplicated) == ({}, 0)
    own = judged(load, admins, endpoint)
    verdict.figures += own
    requests = [request for request in load.receiver.log if request.path in {here, there}]
    answered = [one.answered_at for one in endpoint.exchanges if one.answered_at]
    verdict.measured["outdated"] = outdated(admins, requests, answered, load.receiver.url(""))
    assert (own.broken, own.duplicated) == ({}, 0)
    assert verdict.measured["outdated"] == 0


class Editor:
    """Changes retry policies, and assigns them to subscriptions, through the API; no policy gives up a delivery."""

    def __init__(self, broker: Broker, subscriber: str) -> None:
        self._api = broker.management
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
        self._api.change(f"subscriptions/{subscription}", retry_policy=policy)

    def change(self, policy: str, **terms: object) -> None:
        self._api.change(f"retry-policies/{policy}", **terms)

    def pause(self, subscription: int) -> None:
        self._api.create(f"subscriptions/{subscription}/pause", reason="to see what happens")

    def resume(self, subscription: int) -> None:
        self._api.create(f"subscriptions/{subscription}/resume")


@pytest.mark.behaviour("1.6", "4.9", "4.10", "4.15", "5.1", "5.6")
@pytest.mark.case("policy-edits")
def test_admins_change_policies_under_load(load: Load, figures: Report, verdict: Verdict) -> None:
    has_healed = threading.Event()
    endpoint = RefusingEndpoint(
        "edited",
        load.receiver,
        times=lambda number: number % 10 < 2 and not has_healed.is_set(),
        status=lambda number: 500 if number % 2 else 503,
    )
    edited = load.broker.subscribe(load.receiver.url("/edited"), *load.event_types)
    editor, pace = Editor(load.broker, edited.name), threading.Event()
    load.start()
    with unharmed(load.broker, verdict):
        for edit in [edit for _ in range(POLICY_EDIT_ROUNDS) for edit in editor.edits()]:
            edit()
            pace.wait(POLICY_EDIT_SECONDS)
        has_healed.set()  # what waits is through soon: a line that is held waits a second each time
        load.wait_for(AFTERWARDS)
        seen = figures()
        wait_until(
            lambda: load.broker.has_finished([edited]),
            saying=lambda: load.broker.get(f"subscribers/{edited.name}/line"),
        )

    events = load.published()
    first = [events[one.number] for one in first_sent(endpoint.exchanges)]
    by_type = [[event for event in first if event.type == kind] for kind in load.event_types]
    verdict.measured["tried_again"] = len(endpoint.exchanges) - len(first)
    assert (seen.broken, seen.duplicated) == ({}, 0)
    assert endpoint.accepted() == events.keys() == by_status(load.broker, edited)["DELIVERED"]
    assert [*extra_copies(endpoint.exchanges)] == []
    assert not any(one.flagged or one.altered for one in endpoint.exchanges)
    assert renamed({"edited": endpoint.exchanges}) == 0
    assert (misnumbered(endpoint.exchanges), sum(map(inverted, by_type))) == (0, 0)
    assert load.receiver.max_at_once["/edited"] <= OWN_LINES
