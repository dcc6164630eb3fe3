"""Clocks are set ahead and back: nothing is lost, and work waits for no time that the right clock has yet to reach."""

import itertools
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path

import pytest
from standardwebhooks import Webhook, WebhookVerificationError

from broker_project.stack.load.receiver import Received
from broker_project.stack.load.wait import wait_until
from broker_project.stack.supervisor import Child
from tests.support.faults.breakage import with_environment
from tests.support.faults.endpoints import Endpoint
from tests.support.faults.figures import Report, promised_pause
from tests.support.faults.load import AFTERWARDS, Load, publisher_of
from tests.support.faults.mailbox_clients import acknowledge, never_acknowledge
from tests.support.faults.mailbox_load import MailboxLoad
from tests.support.faults.power import compiled
from tests.support.real_broker import Broker, running_broker

AHEAD_SECONDS = 25.0
MOVED = "PostgreSQL's clock is moved"
MAX_PAUSE = promised_pause(MOVED)
AHEAD = {"2h": timedelta(hours=2), "20d": timedelta(days=20)}
OFF = {"ahead": timedelta(minutes=10), "behind": timedelta(minutes=-10)}
UNREAD = 10
"""Messages of each kind."""
KEPT = {"Idempotency-Key": "kept"}
LIVES = {"Broker-TTL": "1h"}
FIRES = """
SELECT reason ~ '^Clocks differ: that of [^ ]+ is (599|600|601) s [^,]+$' FROM analytics_alert
 WHERE name = 'ClockDiffers' AND fired_at IS NOT NULL
"""
"""Of one process alone."""
SHIFTED_CLOCK = Path(__file__).with_name("shifted_clock.c")

Set = Callable[[timedelta], None]


@contextmanager
def clock_of_its_own(child: Child, folder: Path) -> Iterator[Set]:
    """Restart a process with a wall clock of its own inside; give what sets that ahead of the right time, or back."""
    library, shift = compiled(SHIFTED_CLOCK, folder), folder / "shift"
    shift.write_bytes(bytes(8))

    def set_ahead(by: timedelta) -> None:
        with shift.open("r+b") as file:  # in place: it is mapped
            file.write(int(by.total_seconds()).to_bytes(8, sys.byteorder, signed=True))

    with with_environment([child], LD_PRELOAD=str(library), CLOCK_SHIFT=str(shift)):
        yield set_ahead


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    """A broker for one case: its times are wrong afterwards."""
    with running_broker(tmp_path / "broker") as running:
        yield running


@pytest.fixture(autouse=True)
def _audited() -> None:
    """Audit nothing: audits go by time."""


@pytest.fixture
def set_clock(broker: Broker, tmp_path: Path) -> Iterator[Set]:
    """Set the clock of PostgreSQL ahead, or back."""
    with clock_of_its_own(broker.stack.supervisor["postgres"], tmp_path) as set_clock:
        yield set_clock


@pytest.fixture
def unavailable(load: Load) -> Endpoint:
    """An endpoint that answers 503, so that its line is held."""
    endpoint = load.subscribe("unavailable")
    endpoint.is_busy = True
    return endpoint


def wait_until_all_go_on(load: Load) -> None:
    """Wait until each endpoint has accepted something more, and no longer than is allowed."""
    before = {endpoint: len(endpoint.accepted()) for endpoint in load.endpoints.values()}
    until = time.monotonic() + MAX_PAUSE
    while waiting := [one.name for one, number in before.items() if len(one.accepted()) == number]:
        assert time.monotonic() < until, waiting
        time.sleep(0.05)


@pytest.mark.behaviour("4.16", "5.9", "11.7")
@pytest.mark.case("database-clock-ahead-{ahead}")
@pytest.mark.pause(MOVED)
@pytest.mark.parametrize("ahead", AHEAD)
def test_the_databases_clock_is_ahead_for_a_while(
    load: Load, figures: Report, box: MailboxLoad, unavailable: Endpoint, set_clock: Set, ahead: str
) -> None:
    box.publishers.append(publisher_of(box.broker, [box.event_type], itertools.count(UNREAD + 1), 1, headers=LIVES))
    for _ in range(UNREAD):
        box.publishers[0].publish()
        box.publishers[-1].publish()
    kept_type = load.broker.event_type()
    kept = load.broker.publish(kept_type, headers=KEPT)
    load.start()
    with load.fault():
        set_clock(AHEAD[ahead])
        time.sleep(AHEAD_SECONDS)
    assert {call.status for call in load.calls()} == {202}
    with load.fault():
        set_clock(timedelta())
    unavailable.is_busy = False
    wait_until_all_go_on(load)
    again = load.broker.publish(kept_type, headers=KEPT)
    assert (again.json()["id"], again.headers["Idempotency-Replayed"]) == (kept.json()["id"], "true")
    box.read_by(acknowledge)
    load.wait_for(AFTERWARDS)
    seen = figures()
    assert (seen.broken, seen.max_per_fault) == ({}, 0)
    box.stop()
    assert (box.figures().broken, len(box.handed())) == ({}, 2 * UNREAD)


@pytest.mark.behaviour("5.9")
@pytest.mark.case("database-clock-set-back")
@pytest.mark.pause(MOVED)
def test_the_databases_clock_is_set_back(
    load: Load, figures: Report, box: MailboxLoad, unavailable: Endpoint, set_clock: Set
) -> None:
    box.publishers[0].publish()
    limited = load.broker.subscribe(load.receiver.url("/limited"), *load.event_types, rate_limit=200.0)
    load.endpoints[limited] = Endpoint("limited", load.receiver)
    load.start()
    assert box.client(never_acknowledge).some_receipts()
    with load.fault():
        set_clock(-AHEAD["2h"])
    unavailable.is_busy = False
    wait_until_all_go_on(load)
    box.read_by(acknowledge)
    wait_until(lambda: not box.open(), MAX_PAUSE)
    box.stop()
    load.wait_for(AFTERWARDS)
    seen = figures()
    assert (seen.broken, seen.max_per_fault) == ({}, 0)


@pytest.mark.behaviour("4.11", "11.8")
@pytest.mark.case("worker-clock-{off}")
@pytest.mark.parametrize("off", OFF)
def test_a_workers_clock_is_wrong(load: Load, figures: Report, tmp_path: Path, off: str) -> None:
    only, *others = load.broker.workers()
    load.start()
    for other in others:
        other.stop()
    with clock_of_its_own(only, tmp_path) as set_clock:
        set_clock(OFF[off])
        wait_until_all_go_on(load)
        begun = len(load.receiver.log)
        wait_until(lambda: load.broker.ask(FIRES) == [(True,)])
        load.wait_for(AFTERWARDS)
        seen = figures()
    assert seen.broken == {}
    wrong = [sent for sent in load.receiver.log[begun:] if not is_well_signed(sent, load)]
    assert (wrong, len(load.receiver.log) - begun >= len(load.endpoints) * AFTERWARDS) == ([], True)


def is_well_signed(sent: Received, load: Load) -> bool:
    """Return whether a receiver takes the request, which refuses times that are more than five minutes off."""
    for secret in (secret for subscribed in load.endpoints for secret in subscribed.secrets.values()):
        with suppress(WebhookVerificationError):
            Webhook(secret).verify(sent.body, dict(sent.headers))
            return True
    return False
