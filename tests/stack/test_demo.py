"""The demo: sample events, receivers, readers, verdict and summary."""

import dataclasses
import datetime as dt
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import requests
from django.urls import resolve
from standardwebhooks import Webhook

from analytics.models import Run, RunKind, RunState, RunWindow, WindowState, rows_of
from analytics.pipeline import tables
from broker_client import Message
from broker_project.stack.demo import cast, demo
from broker_project.stack.demo.cast import Cast, SampleEndpoint
from broker_project.stack.demo.demo import WHERE_TO_LOOK, Summary, figures_of
from broker_project.stack.demo.events import KINDS, RECEIVERS, event, price_of
from broker_project.stack.demo.mailbox_reader import NotArchived, Reader
from broker_project.stack.demo.verdict import Account, Verdict, judge, judge_calls
from broker_project.stack.load.exchanges import Call, Exchange, Published, read_log, write_log
from broker_project.stack.load.management_client import Management
from broker_project.stack.load.publisher import Caller, Event, Publisher
from broker_project.stack.load.receiver import Receiver, running_receiver
from broker_project.stack.load.wait import wait_until
from tests.support.api import client_of
from tests.support.mailbox_server import held_message

SECRET, WRONG_SECRET = ("whsec_" + part * 4 for part in ("c2VjcmV0", "d3Jvbmch"))
PAID = "Shop.Order.Paid"


# --- receivers ----------------------------------------------------------------------------


@pytest.fixture
def own_receiver() -> Iterator[Receiver]:
    with running_receiver() as receiver:
        yield receiver


@pytest.fixture
def endpoint(request: pytest.FixtureRequest, own_receiver: Receiver) -> SampleEndpoint:
    (sample,) = (sample for sample in RECEIVERS if sample.name == request.param)
    made = SampleEndpoint(sample, own_receiver, [])
    made.secrets = dict.fromkeys(sample.event_types, SECRET)
    return made


def deliver(receiver: Receiver, path: str, body: bytes, secret: str = SECRET) -> int:
    now = dt.datetime.now(dt.UTC)
    headers = {"webhook-id": "dlv_1", "webhook-timestamp": str(int(now.timestamp()))}
    headers["webhook-signature"] = Webhook(secret).sign("dlv_1", now, body.decode())
    return requests.post(receiver.url(path), body, headers=headers, timeout=60).status_code


@pytest.mark.parametrize("endpoint", ["warehouse"], indirect=True)
def test_an_altered_or_unsigned_event_is_recorded_as_such(endpoint: SampleEndpoint, own_receiver: Receiver) -> None:
    body, path = event(7, PAID).body, f"/warehouse/{PAID}"
    altered = json.dumps(json.loads(body) | {"region": "moon"}).encode()
    for sent, secret in ((body, SECRET), (body, WRONG_SECRET), (altered, SECRET)):
        assert deliver(own_receiver, path, sent, secret) == 200
    found = [(one.number, one.status, one.altered) for one in endpoint.exchanges]
    assert found == [(7, 200, False), (7, 200, True), (7, 200, True)]


@pytest.mark.parametrize("endpoint", ["mail-gateway"], indirect=True)
def test_a_receiver_that_goes_down_refuses_connections_and_comes_back(
    endpoint: SampleEndpoint, own_receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cast, "REFUSAL_AFTER", 1)
    monkeypatch.setattr(cast, "REFUSAL_SECONDS", 0.5)
    path, event_type = "/mail-gateway/Shop.Order.Shipped", "Shop.Order.Shipped"
    assert deliver(own_receiver, path, event(1, event_type).body) == 200
    for number in (2, 3):
        with pytest.raises(requests.ConnectionError):
            deliver(own_receiver, path, event(number, event_type).body)

    def is_back() -> bool:
        try:
            return deliver(own_receiver, path, event(4, event_type).body) == 200
        except requests.ConnectionError:
            return False

    wait_until(is_back)
    assert [(one.number, one.status) for one in endpoint.exchanges if one.number != 4] == [(1, 200), (2, None)]


@pytest.mark.parametrize("endpoint", ["billing"], indirect=True)
def test_overloaded_receivers_recover(endpoint: SampleEndpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cast, "REFUSAL_AFTER", 1)
    monkeypatch.setattr(cast, "REFUSAL_SECONDS", 0.1)
    assert [endpoint.status_for(number) for number in (1, 2, 2)] == [200, 503, 503]
    wait_until(lambda: endpoint.status_for(2) == 200)


@pytest.mark.parametrize(
    ("endpoint", "numbers", "statuses"),
    [
        ("search-index", (1, 20, 20, 60, 60, 60), [200, 500, 200, 500, 500, 200]),
        ("audit", (1, 25, 40, 25), [200, 404, 422, 404]),
    ],
    indirect=["endpoint"],
)
def test_some_events_are_refused(endpoint: SampleEndpoint, numbers: tuple[int, ...], statuses: list[int]) -> None:
    assert [endpoint.status_for(number) for number in numbers] == statuses


def test_samples_are_always_the_same_and_of_realistic_size() -> None:
    sizes = sorted(len(event(number, name).body) for number in range(200) for name in KINDS)
    assert 400 < sizes[0] < sizes[-1] < 4_000
    assert event(7, PAID) == event(7, PAID)


def fetched(number: int, *, redeliveries: int) -> Message:
    body, is_again = event(number, PAID).body, redeliveries > 0
    return dataclasses.replace(held_message(number), redeliveries=redeliveries, possible_duplicate=is_again, body=body)


def test_a_reader_of_the_mailbox_logs_what_it_fetches(tmp_path: Path) -> None:
    reader = Reader("archive-1", tmp_path / "log")
    reader(fetched(49, redeliveries=0))
    with pytest.raises(NotArchived):
        reader(fetched(50, redeliveries=0))
    reader(fetched(50, redeliveries=1))
    logged = [Exchange(**fields) for fields in read_log(tmp_path / "log")]
    told = [(one.number, one.status, one.attempt, one.flagged, one.altered) for one in logged]
    assert told == [(49, 200, 1, False, False), (50, 500, 1, False, False), (50, 200, 2, True, False)]


def test_the_burst_begins_when_the_steady_pace_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "LOOK_SECONDS", 0.01)
    began_beside_others: list[bool] = []

    def nothing() -> Iterator[Event]:
        began_beside_others.append(paced.is_alive())
        burst.problem = "that is enough"
        yield from ()

    session = requests.Session()
    paced = Publisher("", session, iter(()), interval_seconds=0.2)
    burst = Publisher("", session, nothing(), batch_size=20, interval_seconds=0.0)
    caller = Caller("", session, iter(()), bytes, interval_seconds=1.0)
    paced.start()
    demo._wait_until_arrived(Cast([paced], [burst], caller, []))
    assert began_beside_others == [False]


# --- verdict ------------------------------------------------------------------------------


def published(number: int, *, at: float | None = None, lasting: float = 0.5, position: int = 0) -> Published:
    started = float(number) if at is None else at
    return Published(number, "Paid", started, started + lasting, position, "eu", deliveries=1, message_id=number)


def got(number: int, status: int = 200, **fields: object) -> Exchange:
    usual = Exchange(number, f"dlv_{number}", number, False, False, 0.0, status, endpoint="billing")
    return dataclasses.replace(usual, **fields)  # type: ignore[arg-type]


def judged(
    events: Sequence[Published], exchanges: Sequence[Exchange], recorded: dict[int, int] | None = None
) -> Account:
    """Judge exchanges ten seconds apart, the first at 10; with `recorded` as those of a shared group."""
    arrived = [dataclasses.replace(each, at=10.0 * place) for place, each in enumerate(exchanges, start=1)]
    return judge(events, arrived, is_ordered=recorded is None, recorded=recorded)


TWO = [published(1), published(2)]


def test_everything_in_order() -> None:
    assert judged(TWO, [got(1), got(2, 404)]) == Account(
        expected=2, delivered=1, rejected=1, p50=9.0, p95=9.0, accepted={"billing": 1}
    )


@pytest.mark.parametrize(
    ("exchanges", "wrong"),
    [
        ([got(1), got(2, 422)], {}),
        ([got(1)], {"lost": 1}),
        ([got(1), got(2, 500)], {"lost": 1}),
        ([got(1), got(2, 503), got(2, 503)], {"lost": 1}),
        ([got(1), got(2, 503), got(2)], {}),
        ([got(1), got(1), got(2)], {"duplicated": 1}),
        ([got(1, 404), got(1), got(2)], {"duplicated": 1}),
        ([got(1, 500), got(1), got(2)], {"set_aside": 1}),
        ([got(1), got(1, flagged=True), got(2)], {"duplicated": 1}),
        ([got(1), got(1, webhook_id="dlv_7"), got(2)], {"duplicated": 1}),
        ([got(2), got(1)], {"inverted": 1}),
        ([got(1, 500), got(2), got(1)], {"set_aside": 1}),
        ([got(1, 503), got(2), got(1)], {"inverted": 1}),
        ([got(1, altered=True), got(2)], {"wrong": 1}),
        ([got(7), got(1), got(2)], {"wrong": 1}),
    ],
)
def test_what_goes_wrong_for_a_subscriber_is_counted(exchanges: list[Exchange], wrong: dict[str, int]) -> None:
    names = ("lost", "duplicated", "inverted", "wrong", "set_aside", "misrecorded")
    account = judged(TWO, exchanges)
    assert {name: getattr(account, name) for name in names if getattr(account, name)} == wrong


@pytest.mark.parametrize(
    ("events", "order", "inverted"),
    [
        ([published(1), published(2), published(3)], [3, 2, 1], 2),
        ([published(1), published(2), published(3)], [2, 3, 1], 1),
        ([published(1, at=1.0, lasting=2.0), published(2, at=2.0)], [2, 1], 0),
        ([published(number, at=1.0, position=number) for number in (1, 2, 3)], [1, 3, 2], 1),
        ([*(published(n, at=1.0, lasting=5.0, position=n) for n in (1, 2)), published(3, at=2.0)], [2, 3, 1], 1),
    ],
    ids=["backwards", "the first last", "calls that overlap", "a batch", "a batch with a call in between"],
)
def test_inverted_counts_the_overtaken(events: list[Published], order: list[int], inverted: int) -> None:
    assert judged(events, [got(number) for number in order]).inverted == inverted


@pytest.mark.parametrize(
    ("exchanges", "recorded", "wrong"),
    [
        ([got(2), got(1)], {}, {}),
        ([got(1, 500), got(2), got(1, flagged=True)], {}, {}),
        ([got(1), got(2), got(1, flagged=True)], {}, {}),
        ([got(1), got(2), got(1)], {}, {"duplicated": 1}),
        ([got(1), got(2, 500)], {}, {"lost": 1}),
        ([got(1), got(2)], {1: 2}, {"misrecorded": 1}),
        ([got(1), got(2)], {2: 0}, {"misrecorded": 1}),
    ],
)
def test_a_job_or_message_is_done_once_and_repeated_only_with_a_flag(
    exchanges: list[Exchange], recorded: dict[int, int], wrong: dict[str, int]
) -> None:
    account = judged(TWO, exchanges, {1: 1, 2: 1} | recorded)
    names = ("lost", "duplicated", "inverted", "wrong", "misrecorded")
    assert {name: getattr(account, name) for name in names if getattr(account, name)} == wrong


def test_receivers_of_a_group_share_what_arrives() -> None:
    exchanges = [got(1, endpoint="a"), got(2, 500, endpoint="b"), got(2, endpoint="a")]
    account = judged(TWO, exchanges, {1: 1, 2: 1})
    assert account.accepted == {"a": 2}


def test_what_is_published_in_a_burst_has_a_figure_of_its_own() -> None:
    events = [published(number, at=0.0) for number in (1, 2, 3, 4)]
    exchanges = [dataclasses.replace(got(number), at=at) for number, at in ((1, 0.5), (2, 0.5), (3, 8.0), (4, 8.0))]
    account = judge(events, exchanges, burst={3, 4})
    assert (account.p50, account.p95, account.burst_p95) == (0.5, 0.5, 8.0)


@pytest.mark.parametrize("path", WHERE_TO_LOOK)
def test_the_pages_to_look_at_exist(path: str) -> None:
    assert str(resolve(f"/admin/{path}").url_name).endswith("_changelist")


RIGHT_CALLS = [Call(0.0, number, 0.5, 200, price_of(number)) for number in (50, 51)]
RIGHT = {
    "billing": judged(TWO, [got(1), got(2, 404)]),
    "printers": judged(TWO, [got(1), got(2)], {1: 1, 2: 1}),
    "calls": judge_calls(2, RIGHT_CALLS, {number: price_of(number) for number in (50, 51)}),
}
"""Two events of topics, two jobs and two calls, all right."""


def verdict(*, published: int = 6, announced: int = 2, **accounts: Account) -> Verdict:
    return Verdict(6, published, announced, RIGHT | accounts)


def test_the_last_line_counts_a_job_and_a_call_as_a_delivery_each() -> None:
    assert verdict().problems == []
    assert str(verdict()) == (
        "demo: published 6, deliveries 6, delivered 5, rejected 1, lost 0, duplicated 0, inverted 0"
    )


@pytest.mark.parametrize(
    ("spoiled", "problem"),
    [
        (verdict(published=5), "1 events could not be published, or were not answered"),
        (verdict(announced=3), "the broker announced 3 deliveries, and not 2"),
        (verdict(billing=judged(TWO, [got(2), got(1)])), "inverted 1"),
        (verdict(billing=judged(TWO, [got(1), got(1), got(2)])), "duplicated 1"),
        (verdict(printers=judged(TWO, [got(1)], {1: 1, 2: 1})), "lost 1"),
        (
            verdict(printers=judged(TWO, [got(1), got(2)], {1: 2, 2: 1})),
            "1 jobs and fetched events are not recorded by the broker as done once",
        ),
        (
            verdict(billing=judged(TWO, [got(1, altered=True), got(2)])),
            "1 requests were altered, unsigned or not for their receiver",
        ),
        (verdict(calls=judge_calls(2, [*RIGHT_CALLS[:1], Call(0.0, 51, 0.5, 502)], {50: price_of(50)})), "lost 1"),
    ],
)
def test_anything_wrong_spoils_the_verdict(spoiled: Verdict, problem: str) -> None:
    assert spoiled.problems == [problem]


def test_logs_are_read_back_as_written_but_for_an_unfinished_last_line(tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert [*read_log(log)] == []
    write_log(log, [got(1), got(2)])
    log.write_text(log.read_text()[:-5])
    assert [Exchange(**fields) for fields in read_log(log)] == [got(1)]


# --- summary ------------------------------------------------------------------------------

SUMMARY = Summary(statuses={"DELIVERED": 5, "REJECTED": 1, "REDUNDANT": 4}, messages=6, audited=1000)


@pytest.mark.parametrize(
    ("fields", "contradiction"),
    [
        ({}, []),
        ({"messages": 5}, ["the summary says published 5, the logs say 6"]),
        ({"statuses": {"DELIVERED": 6, "REJECTED": 1}}, ["the summary says delivered 6, the logs say 5"]),
        ({"statuses": {"DELIVERED": 5}}, ["the summary says rejected 0, the logs say 1"]),
        ({"unexplained": 1}, ["the ordering audit found 1 deliveries out of order or repeated without a reason"]),
    ],
)
def test_a_summary_that_disagrees_with_the_logs_is_found(fields: dict[str, object], contradiction: list[str]) -> None:
    summary = dataclasses.replace(SUMMARY, **fields)  # type: ignore[arg-type]
    assert [*summary.contradictions(verdict())] == contradiction


def test_the_figures_of_the_summary_are_shown_in_one_line() -> None:
    assert str(SUMMARY) == (
        "6 events; deliveries: 5 DELIVERED, 4 REDUNDANT, 1 REJECTED; ordering audit: 1,000 checked, 0 unexplained"
    )


class ApiThroughDjango(Management):
    """The management API, called in this process."""

    def send(
        self, method: str, path: str, fields: dict[str, object] | None = None, *, query: dict[str, str] | None = None
    ) -> Any:
        client = client_of()
        if method == "POST":
            answer = client.post(f"/api/v1/{path}", fields, content_type="application/json")
        else:
            answer = client.get(f"/api/v1/{path}", query or {})
        assert answer.status_code < 300, answer.content
        return answer.json()


def test_the_figures_come_from_the_hours_of_the_run_and_from_the_demo_alone(db: None) -> None:
    hour = dt.datetime.now(dt.UTC).replace(minute=0, second=0, microsecond=0)
    run = Run.objects.create(kind=RunKind.RANGE, state=RunState.PASSED, start=hour, end=hour + dt.timedelta(hours=1))
    RunWindow.objects.create(run=run, start=hour, end=hour + dt.timedelta(hours=1), state=WindowState.PASSED)
    whose = {"hour": hour, "subscriber_id": 1, "subscriber": "billing-x", "event_type_id": 1, "kind": "TOPIC"}
    for number, name in enumerate((f"{PAID}-x", "Another.Event")):
        of = whose | {"event_type": name, "event_type_id": number}
        counts = {"deliveries": 10, "delivered": 9, "eligible": 10, "first_attempt": 9, "attempts": 11}
        rows_of(tables.RELIABILITY).create(**of, **counts, by_status={"DELIVERED": 9, "REJECTED": 1})
        volume = {"hour": hour, "publisher_id": 1, "publisher": "shop", "event_type": name, "event_type_id": number}
        rows_of(tables.VOLUME).create(**volume, kind="TOPIC", messages=10, bytes=500, deliveries=10, by_outcome={})
    audit = {"checked": 9, "inversions": 2, "explained_inversions": 1, "duplicates": 1, "explained_duplicates": 1}
    rows_of(tables.AUDIT).create(hour=hour, subscriber_id=1, subscriber="billing-x", **audit)
    api = ApiThroughDjango("http://broker", "token", "-x")
    assert figures_of(api, api.get(f"summary-runs/{run.pk}")) == Summary(
        statuses={"DELIVERED": 9, "REJECTED": 1}, messages=10, audited=9, unexplained=1
    )
