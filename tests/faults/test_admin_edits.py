"""Whatever admins edit under load: what qualified arrives once and in order, as it was configured when it was sent."""

import dataclasses
import threading
import time
from collections.abc import Callable, Sequence

import pytest

from broker_project.stack.demo.records import Published
from tests.faults.editing import Admins
from tests.faults.endpoints import Endpoint
from tests.faults.exchanges import first_sent, out_of_order
from tests.faults.figures import Figures
from tests.faults.figures import figures as figures_of
from tests.faults.load import Load
from tests.faults.measuring import unharmed
from tests.faults.verdicts import Verdict
from tests.receiver import Received, wait_until

ROUNDS = 2
EVERY = 1.0
"""Seconds from edit to edit."""
CHECKED_SECONDS = 0.25
"""So long before a request starts it is checked against what is configured, at most, on a busy machine."""
THROUGH_SECONDS = 60.0

Report = Callable[[], Figures]


def edit_every_second(admins: Admins) -> None:
    """Make every edit some times, at an even pace."""
    pace, begun = threading.Event(), time.monotonic()
    edits = [edit for _ in range(ROUNDS) for edit in admins.edits()]
    for number, edit in enumerate(edits):
        pace.wait(begun + number * EVERY - time.monotonic())
        edit()


def judged(load: Load, admins: Admins, endpoint: Endpoint) -> Figures:
    """Judge the edited line: what certainly qualified has to arrive, what certainly did not must not."""
    published = [event for publisher in load.publishers for event in publisher.published]
    unwanted = [event.number for event in published if admins.qualified(event) == {False}]
    came = endpoint.accepted().difference(unwanted)
    wanted = [event for event in published if event.number in came or admins.qualified(event) == {True}]
    begun = {number for publisher in load.publishers for number in publisher.begun}
    line = {endpoint.name: endpoint.exchanges}
    assert len(wanted) > len(unwanted) > 0
    made = figures_of(wanted, begun.difference(unwanted), line)
    return dataclasses.replace(made, inverted=inversions(published, admins, endpoint))


def inversions(published: Sequence[Published], admins: Admins, endpoint: Endpoint) -> int:
    """Count what overtook in its own subscription, and in the line but for what was skipped (behaviour 4.10)."""
    events = {event.number: event for event in published}
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
@pytest.mark.behaviour("1.7", "4.9", "4.15")
@pytest.mark.behaviour("3.7")
@pytest.mark.behaviour("4.10")
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
        wait_until(lambda: load.broker.has_finished([edited]), THROUGH_SECONDS)
    assert (seen.broken, seen.duplicated) == ({}, 0)
    own = judged(load, admins, endpoint)
    verdict.figures += own
    requests = [request for request in load.receiver.log if request.path in {here, there}]
    answered = [one.answered_at for one in endpoint.exchanges if one.answered_at]
    verdict.measured["outdated"] = outdated(admins, requests, answered, load.receiver.url(""))
    assert (own.broken, own.duplicated) == ({}, 0)
    assert verdict.measured["outdated"] == 0
