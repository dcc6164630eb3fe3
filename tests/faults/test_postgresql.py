"""PostgreSQL killed, restarted, away, its sessions ended, restored: what was acknowledged is kept, in order."""

import itertools
import signal
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path

import psycopg
import pytest

from broker_project.stack.load.wait import wait_until
from tests.support.faults.breakage import (
    away,
    beat_going_on,
    copy_database,
    dump,
    full,
    hung,
    incarnation,
    on_small_disk,
    promote,
    read_only,
    restarted,
    restore,
    send,
    set_ids_back,
    terminating,
)
from tests.support.faults.exchanges import extra_copies
from tests.support.faults.figures import RESTARTED, STORES_NOTHING, Figures, Report
from tests.support.faults.load import AFTERWARDS, BATCH, Load, stop_all
from tests.support.faults.power import power_of
from tests.support.faults.proxy import proxied
from tests.support.faults.workload import dice
from tests.support.real_broker import Broker

pytestmark = pytest.mark.behaviour("4.11", "11.3")

AWAY_SECONDS = 60.0
FULL_SECONDS = 5.0
LOSSES = 5
MAX_REFUSAL = 8.0
"""After which a publisher knows that its call was not taken."""
MAX_RETURN = 5.0
"""After which a publisher is answered 2xx again."""
BEGINNING = 1.0
"""Calls that were under way when it went away may have been answered 2xx."""


@pytest.mark.behaviour("2.1")
@pytest.mark.case("postgresql-{ended}")
@pytest.mark.pause(RESTARTED)
@pytest.mark.parametrize("ended", ["killed", "restarted"])
def test_postgresql_is_killed_or_restarted_under_load(load: Load, figures: Report, ended: str) -> None:
    load.start()
    postgres = load.broker.stack.supervisor["postgres"]
    with beat_going_on(load.broker), load.fault(), restarted(postgres):
        if ended == "killed":
            postgres.kill()
        else:
            send(signal.SIGQUIT, postgres)
    load.wait_for(AFTERWARDS)
    seen = figures()
    assert seen.broken == {}
    assert seen.max_per_line <= 1


@pytest.mark.case("postgresql-killed-before-the-answers")
@pytest.mark.pause(RESTARTED)
def test_answers_received_while_postgresql_is_away_are_stored(load: Load, figures: Report) -> None:
    load.start()
    load.wait_until_all_are_under_way()
    postgres = load.broker.stack.supervisor["postgres"]
    with load.fault(), restarted(postgres):
        postgres.kill()
        load.go_on()
    load.wait_for(AFTERWARDS)
    seen = figures()
    assert (seen.broken, seen.duplicated) == ({}, 0)


@contextmanager
def taking_nothing(broker: Broker, way: str) -> Iterator[AbstractContextManager[object]]:
    """Give a context in which PostgreSQL stores nothing."""
    supervisor = broker.stack.supervisor
    if way == "unreachable":
        with proxied(broker, [supervisor["web"], supervisor["beat"], *broker.workers()]) as proxy:
            yield proxy.dropping()
    else:
        postgres = supervisor["postgres"]
        yield {"away": away(postgres), "hung": hung(postgres), "read-only": read_only(broker)}[way]


@pytest.mark.behaviour("2.1", "4.16", "11.5")
@pytest.mark.case("postgresql-{way}-60s")
@pytest.mark.pause(STORES_NOTHING, after=AWAY_SECONDS)
@pytest.mark.parametrize("way", ["away", "hung", "read-only", "unreachable"])
def test_postgresql_takes_nothing_for_a_minute(load: Load, figures: Report, way: str) -> None:
    with taking_nothing(load.broker, way) as outage:
        load.start()
        load.wait_until_all_are_under_way()
        with beat_going_on(load.broker):
            with outage, load.fault():
                time.sleep(AWAY_SECONDS / 2)
                load.go_on()
                time.sleep(AWAY_SECONDS / 2)
            back = time.monotonic()
            load.wait_for(1)
            assert time.monotonic() - back <= MAX_RETURN
        load.wait_for(AFTERWARDS)
        seen = figures()
    assert seen.broken == {}
    assert seen.max_per_line <= 1
    under_way = [one for endpoint in load.endpoints.values() for one in endpoint.exchanges if one.hung_up]
    assert len(under_way) == len(load.endpoints), "workers end requests before their leases do"
    calls = [call for call in load.calls() if call.begun > load.faults[-1].begun + BEGINNING]
    assert len(calls) >= AWAY_SECONDS / MAX_REFUSAL
    assert {call.status for call in calls} == {503}
    assert max(call.seconds for call in calls) <= MAX_REFUSAL


def store_unsynced(broker: Broker, stored: list[int]) -> None:
    """Store a row after the other, in transactions that do not wait to be synced, until the database is gone."""
    with suppress(psycopg.OperationalError), terminating(broker) as connection:
        connection.execute("SET synchronous_commit = off")
        for number in itertools.count():
            connection.execute("INSERT INTO unsynced VALUES (%s)", [number])
            stored.append(number)


@pytest.mark.behaviour("4.11", "11.3")
@pytest.mark.case("postgresql-power-lost")
@pytest.mark.pause(RESTARTED)
def test_what_is_not_synced_is_lost_with_the_power(load: Load, figures: Report, tmp_path: Path) -> None:
    unsynced: list[int] = []
    with terminating(load.broker) as connection:
        connection.execute("CREATE TABLE unsynced (number int)")
    with power_of(load.broker, tmp_path, dice("power")) as power:
        load.start()
        for _ in range(LOSSES):
            threading.Thread(target=store_unsynced, args=[load.broker, unsynced], daemon=True).start()
            load.wait_for(AFTERWARDS)
            with load.fault():
                power.lose()
        load.wait_for(AFTERWARDS)
        seen = figures()
    ((kept,),) = load.broker.ask("SELECT count(*) FROM unsynced")
    with terminating(load.broker) as connection:
        connection.execute("DROP TABLE unsynced")
    assert kept < len(unsynced), "what was not synced has to be lost"
    assert (seen.broken, seen.max_per_fault <= 1) == ({}, True)


@pytest.mark.behaviour("2.1", "11.5")
@pytest.mark.case("postgresql-disk-full")
def test_the_disk_is_full_for_some_seconds(load: Load, figures: Report, tmp_path: Path) -> None:
    with on_small_disk(load.broker, tmp_path / "disk") as filler:
        load.start()
        with full(filler), load.fault():
            wait_until(lambda: any(call.status == 503 for one in load.publishers for call in one.calls))
            time.sleep(FULL_SECONDS)
        back = time.monotonic()
        load.wait_for(1)
        assert time.monotonic() - back <= MAX_RETURN
        load.wait_for(AFTERWARDS)
        seen = figures()
    assert seen.broken == {}
    assert seen.max_per_line <= 1
    assert max(call.seconds for call in load.calls()) <= MAX_REFUSAL


def named_twice(load: Load) -> list[str]:
    """Return the webhook ids, message ids and numbers of a line that have named two events."""
    named: defaultdict[str, set[int]] = defaultdict(set)
    for endpoint in load.endpoints.values():
        for one in endpoint.exchanges:
            named[one.webhook_id].add(one.number)
            named[f"message {one.message_id}"].add(one.number)
            named[f"number {one.sequence} of {endpoint.name}"].add(one.number)
    return sorted(name for name, events in named.items() if len(events) > 1)


def assert_numbers_have_jumped(load: Load, seen: Figures, *allowed: str) -> None:
    assert named_twice(load) == []
    assert seen.misnumbered == len(load.endpoints)  # once in each line
    assert seen.broken.keys() <= {"misnumbered", *allowed}


@pytest.mark.behaviour("4.10")
@pytest.mark.case("postgresql-ids-set-back")
def test_ids_are_set_back_under_a_running_worker(load: Load, figures: Report) -> None:
    load.start()
    load.stop()
    before, publisher = incarnation(load.broker), load.publisher(BATCH)
    with load.fault():
        set_ids_back(load.broker)
        wait_until(lambda: incarnation(load.broker) != before)
    publisher.start()
    load.wait_for(AFTERWARDS)
    assert_numbers_have_jumped(load, figures())


@pytest.mark.behaviour("4.10")
@pytest.mark.case("postgresql-older-dump-restored")
def test_an_older_dump_is_restored(load: Load, figures: Report, tmp_path: Path) -> None:
    load.start()
    load.wait_until_all_are_under_way()
    dump(load.broker, tmp_path / "dump")
    load.go_on()
    load.wait_for(AFTERWARDS)
    load.stop()
    with load.fault():
        restore(load.broker, tmp_path / "dump")
    load.start()
    seen = figures()
    assert_numbers_have_jumped(load, seen, "not_under_way", "unflagged")  # what waited has another number now
    for endpoint in load.endpoints.values():
        copies = [copy.request for copy in extra_copies(endpoint.exchanges)]
        assert len(copies) > 1  # what was under way at the dump, and what waited behind it
        assert all(copy.flagged for copy in copies)
        ids = {(one.number, one.webhook_id) for one in endpoint.exchanges}
        assert len(ids) == len({number for number, _ in ids})


@pytest.mark.behaviour("4.10")
@pytest.mark.case("postgresql-standby-promoted")
def test_a_standby_without_the_last_commits_is_promoted(load: Load) -> None:
    load.start()
    copy = copy_database(load.broker)
    load.wait_for(AFTERWARDS)
    with load.fault():
        promote(load.broker, copy)
    load.wait_for(AFTERWARDS)
    stop_all(load.publishers)
    wait_until(lambda: load.broker.has_finished(load.endpoints))
    assert_numbers_have_jumped(load, load.figures(), "lost", "not_under_way", "unflagged")
    for endpoint in load.endpoints.values():
        assert all(copy.request.flagged for copy in extra_copies(endpoint.exchanges))
