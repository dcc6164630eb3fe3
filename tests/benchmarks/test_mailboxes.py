"""The scenarios of mailboxes, small, on a real broker: that they measure and verify, never how fast anything is."""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from benchmarks import bench as benchmarks_bench
from benchmarks.bench import Bench, on
from benchmarks.children import fetching
from benchmarks.connection import Connection, body_of
from benchmarks.mailbox_client import Errand
from benchmarks.publisher import ACCEPTED
from benchmarks.receipts import ANYBODY, problems
from benchmarks.scenarios import mailbox
from benchmarks.scenarios.mailbox import faults
from tests.benchmarks.test_scenarios import SHORT, values
from tests.real_broker import Broker

pytestmark = pytest.mark.faults


@pytest.fixture
def bench(broker: Broker) -> Iterator[Bench]:
    with on(broker.stack, replace(SHORT, seconds=2.0), lambda _: None) as running:
        yield running


def test_what_is_fetched_is_acknowledged_and_verified(bench: Bench) -> None:
    found = values(mailbox.run_mailbox_throughput(bench, per_call=10, window=200))
    assert found["acknowledged"] > 0
    assert 1 <= found["messages a fetch"] <= 10
    assert 0 < found["fetch p50"] <= found["fetch p95"]
    assert 0 < found["acknowledge p50"] <= found["acknowledge p95"]
    assert 0 <= found["fetches in vain"] <= 100
    assert found["CPU of consumers"] > 0


@pytest.mark.lengthy
def test_fetches_are_timed_out_of_a_full_mailbox_that_is_empty_in_the_end(bench: Bench) -> None:
    ((others,),) = bench.ask("SELECT COALESCE(max(id), 0) FROM subscriptions_subscription")
    found = values(mailbox.run_million(bench, messages=20_000))
    for of in ("", ", timed out"):
        assert min(found[f"acknowledged{of}"], found[f"accepted p95{of}"]) > 0
        assert 0 < found[f"fetch p50{of}"] <= found[f"fetch p95{of}"] <= found[f"fetch p99{of}"]
    ((still_open,),) = bench.ask("SELECT count(*) FROM delivery_open WHERE subscription_id > %s", others)
    assert still_open == 0


@pytest.mark.lengthy
def test_those_who_wait_are_reached_and_those_who_may_not_are_told(bench: Bench) -> None:
    found = values(mailbox.run_polling(bench, per_second=20, seats=3, clients=60))
    assert min(found["accepted p95, nobody waits"], found["accepted p95, 3 clients : nobody"]) > 0
    assert min(found["reached p95, 3 clients"], found["reached p95, 60 clients"]) > 0
    assert 0 <= found["others waiting p50, 3 clients"] <= 2
    assert found["turned away p95, 60 clients"] > 0


def test_a_message_that_comes_again_is_a_fault(bench: Bench) -> None:
    (event_type,) = benchmarks_bench.event_types(bench.api, 1)
    mailbox, key = benchmarks_bench.mailbox(bench.api, event_type)
    publisher = Connection(bench.stack.web, benchmarks_bench.publisher_key(bench.api))
    for _ in range(2):
        publisher.post(f"/api/v1/events/{event_type}".encode(), body_of(0, 1, 0), expected=ACCEPTED)
    publisher.close()
    with fetching(Errand(bench.stack.web, key, mailbox, consumers=1, most=1, wait=0)) as consumers:
        assert bench.unfinished(consumers, 2) == []
        taken = consumers.end()
    assert (taken.messages, faults(taken)) == (2, [])
    assert [*problems(taken.receipts, {(ANYBODY, 0): 2})] == ["1 requests came again", "1 deliveries never arrived"]
