"""Each scenario, small, on a real broker."""

import contextlib
import os
import socket
import subprocess
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest

from benchmarks.bench import Bench, Options
from benchmarks.command import json_rows
from benchmarks.command_process import measured_database
from benchmarks.connection import Connection, body_of
from benchmarks.figures import Outcome
from benchmarks.mailbox_client import FetchPlan, fetching
from benchmarks.measure import BROKER
from benchmarks.processes import context_switches, received_segments
from benchmarks.receipts import ANY
from benchmarks.scenarios import horizon, mailbox, publish, queue, retries, scale, soak, summaries, topic
from benchmarks.sink import running_sink
from broker_project.stack.ports import LOOPBACK
from tests.support.faults.breakage import away
from tests.support.real_broker import Broker

pytestmark = pytest.mark.faults

GROUPS = ("web", "workers", "postgres", "redis", "analytics", "beat+flower", "sink", "publisher")
SHORT = Options(seconds=1.0, warm_seconds=0.3, bare_seconds=0.2, minutes=0.02, rate=20.0)


@pytest.fixture
def bench(broker: Broker, request: pytest.FixtureRequest) -> Bench:
    """Return a bench that measures for as long as the test's parameter says, otherwise for a second."""
    options = replace(SHORT, seconds=getattr(request, "param", SHORT.seconds))
    return Bench(broker.stack, broker.management, options, lambda _: None)


MESSAGES = "SELECT min(size), max(size), count(*), count(DISTINCT headers) FROM delivery_message WHERE id > %s"


def newest(bench: Bench) -> object:
    """Return the id of the newest message."""
    ((newest,),) = bench.ask("SELECT COALESCE(max(id), 0) FROM delivery_message")
    return newest


measured_for = partial(pytest.mark.parametrize, "bench", indirect=True)


def values(outcome: Outcome) -> dict[str, float]:
    assert [*outcome.problems] == []
    return {figure.name: figure.value for figure in outcome.figures}


@pytest.mark.parametrize(
    "run",
    [
        pytest.param(partial(topic.run_dense, subscribers=4), id="dense"),
        pytest.param(partial(topic.run_single, per_call=5), id="single", marks=pytest.mark.lengthy),
        pytest.param(partial(publish.run_fanout, subscribers=3), id="fanout50", marks=pytest.mark.lengthy),
        pytest.param(partial(publish.run_sparse, subscribers=7), id="sparse", marks=pytest.mark.lengthy),
    ],
)
@measured_for([2.0])
def test_throughput_is_delivered_by_processes_that_used_the_cpu(bench: Bench, run: Callable[[Bench], Outcome]) -> None:
    outcome = run(bench)
    found = values(outcome)
    assert found["delivered"] > 0
    assert found["CPU of workers"] > 0
    assert found["publishers awaiting answers"] > 0
    assert {f"CPU of {group}" for group in GROUPS} < found.keys()
    assert found["CPU of the broker"] == pytest.approx(sum(found[f"CPU of {group}"] for group in BROKER))
    written = ("commits", "WAL", "context switches", "requests to postgres", "requests to redis")
    assert min(found[name] for name in (*written, "delivered p95", "accepted p95")) > 0
    assert outcome.figures[0].bare


@pytest.mark.behaviour("6.2", "6.4")
@pytest.mark.parametrize(
    "run",
    [
        pytest.param(partial(queue.run_fast, per_call=5), id="fast"),
        pytest.param(partial(queue.run_slow, per_call=5), id="slow", marks=pytest.mark.lengthy),
    ],
)
@measured_for([3.0])
def test_jobs_are_done_once_and_shared_by_senders_and_endpoints(bench: Bench, run: Callable[[Bench], Outcome]) -> None:
    found = values(run(bench))
    assert found["jobs"] > 0
    assert found["senders, max / mean"] >= 1
    shares = [found[f"share of endpoint {number}"] for number in (1, 2, 3)]
    assert min(shares) > 0
    assert sum(shares) == pytest.approx(100)


@pytest.mark.lengthy
def test_calls_are_answered_after_the_endpoint_has_got_them_and_all_recorded(bench: Bench) -> None:
    found = values(publish.run_sync(bench, per_second=40))
    assert 0 < found["delivered p50"] < found["accepted p50"] <= found["accepted p95"] <= found["accepted p99"]
    assert found["delivered, at once"] > 0
    assert found["CPU of web"] > 0


@pytest.mark.lengthy
def test_latency_is_that_of_the_answer_and_that_of_the_arrival(bench: Bench) -> None:
    found = values(topic.run_latency(bench, subscribers=3, per_second=40))
    assert 0 < found["accepted p50"] <= found["accepted p95"] <= found["accepted p99"]
    assert 0 < found["delivered p50"] <= found["delivered p95"] <= found["delivered p99"]
    assert found["delivered"] > 0
    assert found["CPU of web"] > 0


@pytest.mark.lengthy
def test_deliveries_go_on_under_a_snapshot_and_during_a_backup(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(horizon, "WARM_SECONDS", 0.5)
    bench = replace(bench, options=replace(bench.options, minutes=0.0, rate=0.0))
    found = values(horizon.run(bench, subscribers=3, rates=(40.0,), seconds=5.0))
    assert min(found[f"delivered, {phase}, 40/s"] for phase in ("clean", "held", "dumped")) > 0
    assert found["dead rows, 40/s"] > 0


@pytest.mark.lengthy
def test_fan_out_lasts_until_the_last_has_it(bench: Bench) -> None:
    outcome = topic.run_fanout(bench, subscribers=5)
    found = values(outcome)
    assert 0 < found["to the last, median"] <= found["to the last, worst"]
    assert outcome.figures[0].bare


@pytest.mark.lengthy
@measured_for([3.0])
def test_single_events_with_keys_are_published_over_few_and_over_many_connections(bench: Bench) -> None:
    before = newest(bench)
    outcome = publish.run_keyed(bench, subscribers=3)
    found = values(outcome)
    for connections in publish.CONNECTIONS:
        assert min(found[f"{name}_{connections}"] for name in ("delivered", "accepted p95", "CPU of web")) > 0
    assert {figure.bare is not None for figure in outcome.figures if figure.unit == "/s"} == {True}
    ((*sizes, messages, _),) = bench.ask(MESSAGES, before)
    assert sizes == [300, 300]
    assert bench.ask("SELECT count(*) FROM delivery_idempotencykey WHERE message_id > %s", before) == [(messages,)]


@pytest.mark.lengthy
@pytest.mark.parametrize(
    ("run", "names"),
    [
        pytest.param(partial(publish.run_steady, subscribers=3), ["delivered_200", "delivered_50"], id="steady"),
        pytest.param(
            partial(publish.run_pipelined, subscribers=3), ["accepted p95", "health check p95"], id="pipelined"
        ),
        pytest.param(
            partial(topic.run_scripts, subscribers=3, hostile=2, per_second=30),
            [*(f"delivered, {what}" for what in ("alone", "beside", "scripted, beside")), "p99, beside / alone"],
            id="scripts",
        ),
        pytest.param(
            partial(retries.run, subscribers=3, count=300, pause_seconds=0.2, parts=1, rounds=1),
            [
                *(f"delivered, {what} retry lanes" for what in ("empty", "waiting", "due")),
                *(f"retried in retry lanes, {what} retry lanes" for what in ("waiting", "due")),
                "waiting retry lanes / empty retry lanes",
            ],
            marks=pytest.mark.behaviour("5.3"),
            id="retrying",
        ),
    ],
)
@measured_for([3.0])
def test_each_variant_of_a_scenario_is_measured(
    bench: Bench, run: Callable[[Bench], Outcome], names: list[str]
) -> None:
    found = values(run(bench))
    assert min(found[name] for name in names) > 0


@pytest.mark.lengthy
def test_orders_vary_in_size_and_in_their_headers(bench: Bench) -> None:
    before = newest(bench)
    values(topic.run_real(bench, subscribers=5))
    ((least, most, messages, headers),) = bench.ask(MESSAGES, before)
    sizes = [len(body_of(0, 0, 0, rest)) for rest in topic.ORDERS]
    assert (least, most) == (min(sizes), max(sizes))
    assert messages == headers


@pytest.mark.lengthy
def test_an_idle_broker_has_costs_a_second_and_as_many_subscribers_as_it_says(bench: Bench) -> None:
    outcome = scale.run_idle(bench, subscribers=7)
    found = values(outcome)
    assert min(found["context switches_0"], found["context switches_7"], found["requests to postgres_7"]) > 0
    assert {figure.unit for figure in outcome.figures if figure.name.startswith("CPU of")} == {"µs/s"}


@pytest.mark.lengthy
def test_hanging_endpoints_do_not_count(bench: Bench) -> None:
    found = values(topic.run_hanging(bench, subscribers=4, hanging=2, per_second=40, min_seconds=1.0))
    assert 0 < found["delivered"] < found["accepted"]


@pytest.mark.lengthy
def test_rejected_deliveries_are_measured_beside_accepted_ones(bench: Bench) -> None:
    found = values(topic.run_rejected(bench, subscribers=3))
    assert min(found["delivered, 204"], found["delivered, 404"], found["404 / 204"]) > 0
    ((rejections,),) = bench.ask("SELECT count(*) FROM delivery_delivery WHERE status = 'REJECTED'")
    assert rejections


@pytest.mark.lengthy
def test_open_deliveries_and_ended_services_are_reported(bench: Bench) -> None:
    with running_sink(hanging=1) as sink:
        (event_type,), _ = bench.subscribe([sink.endpoint(0)], 1)
        with contextlib.closing(Connection(bench.stack.web, bench.publisher_key())) as publisher:
            publisher.publish(event_type, body_of(0, 1, 0))
        assert bench.unfinished(sink, 1, seconds=1.0) == ["1 deliveries were still open after 1 s"]
        sink.answer_all()
        assert bench.unfinished(sink, 1) == []
    flower = bench.stack.supervisor["flower"]
    with away(flower):
        assert f"flower ended, see {flower.log}" in bench.ended()
    assert f"flower ended, see {flower.log}" not in bench.ended()


@pytest.mark.lengthy
def test_a_soak_compares_its_quarters(bench: Bench) -> None:
    outcome = soak.run(bench, subscribers=4, sample_seconds=0.2)
    found = values(outcome)
    assert found["growth of memory of worker1"] > 0
    assert all(found[f"{table} indexes"] > 0 for table in ("delivery_open", "delivery_line", "delivery_pageread"))
    assert found["CPU of postgres, last quarter"] >= 0
    published = {"scenario": "soak", "figure": "published", "value": 20.0, "unit": "/s", "bare": None}
    assert json_rows("soak", outcome.figures)[0] == published


@pytest.mark.lengthy
def test_growth_is_measured_for_all_that_a_delivery_goes_through(bench: Bench) -> None:
    found = values(scale.run_growth(bench, finished=1_000, waiting=100, rounds=3))
    assert [name.partition(",")[0] for name in found] == [
        *("publish", "sweep", "claim", "read a page", "settle", "fetch", "acknowledge")
    ]
    assert min(found.values()) > 0
    assert bench.ask("SELECT datname FROM pg_database WHERE datname LIKE 'broker_growth%'") == []


@pytest.mark.lengthy
def test_all_pages_of_the_admin_site_are_opened(bench: Bench) -> None:
    found = values(scale.run_pages(bench, subscribers=20, finished=1_000, waiting=100, rounds=1))
    assert (len(found), min(found.values()) > 0) == (2 * scale.SHOWN_PAGES, True)


@pytest.mark.lengthy
def test_matching_is_measured_for_each_kind_of_filter_and_number_of_subscriptions(bench: Bench) -> None:
    found = values(scale.run_matching(bench, counts=(6, 60), rounds=3))
    kinds = ("header filters", "equality filters")
    assert [*found] == [f"{kind}, {counts}" for kind in kinds for counts in ("6", "60 : 6")]
    assert min(found.values()) > 0
    assert bench.ask("SELECT datname FROM pg_database WHERE datname LIKE 'broker_matching%'") == []


@pytest.mark.lengthy
def test_a_history_is_summed_up_by_spark_and_in_sql(bench: Bench) -> None:
    with measured_database(bench.stack.environment, "broker_summaries_test", summaries.PROCESS) as (there, pid):
        cost = summaries.cost(bench, there, pid, attempts=2_000)
    assert cost.by_spark["error"] == ""
    assert cost.attempts > 1_000
    assert min(cost.by_spark["seconds"], cost.by_spark["lake_bytes"], cost.in_sql["seconds"], cost.pss_bytes) > 0


@measured_for([2.0])
def test_fetched_messages_are_acknowledged_and_verified(bench: Bench) -> None:
    found = values(mailbox.run_throughput(bench, per_call=10, window=200))
    assert found["acknowledged"] > 0
    assert 1 <= found["messages a fetch"] <= 10
    assert 0 < found["fetch p50"] <= found["fetch p95"]
    assert 0 < found["acknowledge p50"] <= found["acknowledge p95"]
    assert 0 <= found["empty fetches"] <= 100
    assert found["CPU of consumers"] > 0


@pytest.mark.lengthy
@measured_for([2.0])
def test_fetches_are_timed_out_of_a_full_mailbox_that_is_empty_in_the_end(bench: Bench) -> None:
    ((others,),) = bench.ask("SELECT COALESCE(max(id), 0) FROM subscriptions_subscription")
    found = values(mailbox.run_million(bench, messages=20_000))
    for of in ("", ", timed out"):
        assert min(found[f"acknowledged{of}"], found[f"accepted p95{of}"]) > 0
        assert 0 < found[f"fetch p50{of}"] <= found[f"fetch p95{of}"] <= found[f"fetch p99{of}"]
    ((still_open,),) = bench.ask("SELECT count(*) FROM delivery_open WHERE subscription_id > %s", others)
    assert still_open == 0


@pytest.mark.lengthy
@measured_for([2.0])
def test_waiting_clients_get_messages_and_the_others_are_turned_away(bench: Bench) -> None:
    found = values(mailbox.run_polling(bench, per_second=20, seats=3, clients=60))
    assert min(found["accepted p95, no client waits"], found["accepted p95, 3 clients : none"]) > 0
    assert min(found["reached p95, 3 clients"], found["reached p95, 60 clients"]) > 0
    assert 0 <= found["others waiting p50, 3 clients"] <= 2
    assert found["turned away p95, 60 clients"] > 0


def test_a_repeated_message_is_a_fault(bench: Bench) -> None:
    event_type, mailbox, key = bench.create_mailbox()
    with contextlib.closing(Connection(bench.stack.web, bench.publisher_key())) as publisher:
        for _ in range(2):
            publisher.publish(event_type, body_of(0, 1, 0))
    with fetching(FetchPlan(bench.stack.web, key, mailbox, 1, max_messages=1, wait_seconds=0)) as consumers:
        assert bench.unfinished(consumers, 2) == []
        taken = consumers.end()
    assert (taken.messages, taken.problems()) == (2, [])
    assert [*taken.receipts.problems({(ANY, 0): 2})] == ["1 requests came again", "1 deliveries never arrived"]


REQUESTS = 10


def test_each_request_to_a_server_is_counted_once() -> None:
    with socket.create_server((LOOPBACK, 0)) as server:
        port = server.getsockname()[1]
        with socket.create_connection((LOOPBACK, port)) as client, server.accept()[0] as connection:
            assert received_segments(port) == 0
            for _ in range(REQUESTS):
                client.sendall(b"SELECT 1")
                assert connection.recv(100) == b"SELECT 1"
                connection.sendall(b"1")  # is received by the client, not by the server
            assert received_segments(port) == REQUESTS


def test_a_process_that_waits_leaves_its_core() -> None:
    before = context_switches(os.getpid())
    with subprocess.Popen(["true"]) as ended:  # is waited for
        pass
    assert context_switches(os.getpid()) > before
    assert context_switches(ended.pid) == 0
