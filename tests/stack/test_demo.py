"""The demo: receivers, samples, progress and summary."""

import datetime as dt
import json
import socket
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import requests
from django.db.models.functions import Now
from rich.console import Console
from standardwebhooks import Webhook

from analytics.models import Run, RunKind, RunState, RunWindow, WindowState
from broker_client import Message
from broker_project.stack.demo import receiver as receiving
from broker_project.stack.demo.events import OFFICE, PUBLISHERS, SUBSCRIBERS, event, fingerprint
from broker_project.stack.demo.mailbox_reader import NotArchived, Reader
from broker_project.stack.demo.publishers import EVENTS, REPORTS, office, publishers
from broker_project.stack.demo.receiver import Receiver, Server, is_signed
from broker_project.stack.demo.records import requests_in
from broker_project.stack.demo.run import Following, followings
from broker_project.stack.demo.summarize_demo import standing, why_not
from broker_project.stack.demo.summary import Summary, contradictions, table
from broker_project.stack.demo.verdict import Account, Archived, Jobs, Questions, Verdict, Whole
from broker_project.stack.ports import LOOPBACK, accepts
from tests.stack.test_supervisor import until

SECRET = "whsec_" + "c2VjcmV0" * 4


@pytest.fixture
def receiver(request: pytest.FixtureRequest, tmp_path: Path) -> Receiver:
    secrets = tmp_path / "secrets"
    secrets.write_text(json.dumps({f"{request.param}/Paid": SECRET}))
    return Receiver(request.param, tmp_path / "log", secrets)


@pytest.fixture
def server(receiver: Receiver) -> Iterator[Server]:
    with Server(0, receiver) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}).start()
        yield server
        server.shutdown()


def deliver(server: Server, number: int, *, secret: str = SECRET) -> int:
    body = json.dumps({"number": number})
    now = dt.datetime.now(dt.UTC)
    headers = {
        "webhook-id": f"id {number}",
        "webhook-timestamp": str(int(now.timestamp())),
        "webhook-signature": Webhook(secret).sign(f"id {number}", now, body),
    }
    address = f"http://{LOOPBACK}:{server.server_port}/Paid"
    return requests.post(address, body, headers=headers, timeout=60).status_code


@pytest.mark.parametrize("receiver", ["warehouse"], indirect=True)
def test_a_receiver_writes_down_what_it_got(server: Server, tmp_path: Path) -> None:
    answers = [deliver(server, 7), deliver(server, 8, secret="whsec_" + "d3Jvbmch" * 4)]
    until(lambda: len(requests_in(tmp_path / "log")) == 2)
    written = [(each.number, each.path, each.signed, each.answer) for each in requests_in(tmp_path / "log")]
    assert (answers, written) == ([200, 200], [(7, "/Paid", True, 200), (8, "/Paid", False, 200)])
    assert requests_in(tmp_path / "log")[0].fingerprint == fingerprint(b'{"number": 7}')


@pytest.mark.parametrize("receiver", ["mail-gateway"], indirect=True)
def test_a_receiver_that_goes_down_refuses_connections(
    server: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(receiving, "REFUSAL_AFTER", 1)
    assert deliver(server, 1) == 200
    with pytest.raises(requests.ConnectionError):
        deliver(server, 2)
    server.server_close()
    until(lambda: not accepts(server.server_port))
    assert [each.number for each in requests_in(tmp_path / "log")] == [1]


@pytest.mark.parametrize("receiver", ["billing"], indirect=True)
def test_an_overloaded_receiver_recovers_after_a_while(receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(receiving, "REFUSAL_AFTER", 1)
    monkeypatch.setattr(receiving, "REFUSAL_SECONDS", 0.1)
    assert [receiver.answer_to(1), receiver.answer_to(2), receiver.answer_to(2)] == [200, 503, 503]
    until(lambda: receiver.answer_to(2) == 200)


@pytest.mark.parametrize("receiver", ["search-index"], indirect=True)
def test_a_failing_receiver_answers_in_the_end(receiver: Receiver) -> None:
    assert [receiver.answer_to(20) for _ in range(3)] == [500, 200, 200]
    assert [receiver.answer_to(60) for _ in range(3)] == [500, 500, 200]
    assert receiver.answer_to(1) == 200


@pytest.mark.parametrize("receiver", ["audit"], indirect=True)
def test_a_picky_receiver_always_gives_the_same_answer(receiver: Receiver) -> None:
    assert [receiver.answer_to(number) for number in (1, 25, 40, 25)] == [200, 404, 422, 404]


def test_a_signature_of_another_body_is_none() -> None:
    now = dt.datetime.now(dt.UTC)
    signature = Webhook(SECRET).sign("id", now, "{}")
    headers = {"webhook-id": "id", "webhook-timestamp": str(int(now.timestamp())), "webhook-signature": signature}
    assert is_signed(headers, b"{}", SECRET)
    assert not is_signed(headers, b"{ }", SECRET)
    assert not is_signed({}, b"{}", SECRET)


def test_samples_are_always_the_same_and_of_realistic_size() -> None:
    bodies = [event(number, name).body for number in range(200) for names in PUBLISHERS.values() for name in names]
    sizes = sorted(len(json.dumps(body)) for body in bodies)
    assert 400 < sizes[0] < sizes[-1] < 4_000
    assert event(7, "Shop.Order.Paid") == event(7, "Shop.Order.Paid")


def test_publishers_share_the_events_so_that_every_subscriber_gets_many(tmp_path: Path) -> None:
    threads = publishers("http://web", dict.fromkeys(PUBLISHERS, "token"), "", tmp_path)
    numbers = [each.number for thread in threads for each in thread.events]
    assert numbers == list(range(1, EVENTS + 1))
    assert all(log.expected > 200 for log in followings(threads, tmp_path)[: len(SUBSCRIBERS)])
    to_print = office("http://web", {OFFICE: "token"}, "", tmp_path, "http://replies")
    archive, printers, replies = followings([*threads, to_print], tmp_path)[len(SUBSCRIBERS) :]
    assert (archive.expected, printers.expected, replies.expected) == (EVENTS, REPORTS, REPORTS // 20)


def handed_out(number: int, *, redeliveries: int) -> Message:
    return Message(
        receipt=f"receipt of {number}",
        id=f"id {number}",
        delivery_id=number,
        message_id=number,
        event_type="Paid",
        subscription_id=1,
        published_at=dt.datetime.now(dt.UTC),
        in_flight_until=dt.datetime.now(dt.UTC),
        held_until=0.0,
        redeliveries=redeliveries,
        possible_duplicate=redeliveries > 0,
        content_type="application/json",
        headers={},
        body=b'{"number": %d}' % number,
    )


def test_a_reader_of_the_mailbox_writes_down_what_it_is_handed(tmp_path: Path) -> None:
    reader = Reader("archive-1", tmp_path / "log")
    reader(handed_out(49, redeliveries=0))
    with pytest.raises(NotArchived):
        reader(handed_out(50, redeliveries=0))
    reader(handed_out(50, redeliveries=1))
    written = requests_in(tmp_path / "log")
    assert [(each.number, each.answer, each.attempt, each.possible_duplicate) for each in written] == [
        (49, 200, "1", ""),
        (50, 500, "1", ""),
        (50, 200, "2", "true"),
    ]
    assert written[0].fingerprint == fingerprint(b'{"number": 49}')


def test_a_growing_log_is_read_once(tmp_path: Path) -> None:
    path = tmp_path / "log"
    following = Following("billing", "steady", [path], expected=3)
    following.look()
    path.write_text('{"number": 1, "answer": 200}\n{"number": 2, "answer": 503}\n{"number": 3, "ans')
    following.look()
    assert following.ended == {1}
    with path.open("a") as log:
        log.write('wer": 404}\n')
    following.look()
    assert following.ended == {1, 3}


def test_another_program_on_a_port_is_noticed() -> None:
    with socket.create_server((LOOPBACK, 0)) as taken:
        assert accepts(taken.getsockname()[1])


ACCOUNT = Account(
    expected=100,
    delivered=90,
    rejected=10,
    set_aside=0,
    requests=105,
    lost=0,
    duplicated=0,
    inverted=0,
    wrong=0,
    p50=0.1,
    p95=0.2,
)
JOBS = Jobs(
    published=20,
    done_by={"printer-1": 20},
    requests={"printer-1": 20},
    lost=0,
    duplicated=0,
    wrong=0,
    misrecorded=0,
    wanted=1,
    replied=1,
)
ARCHIVED = Archived(
    expected=7,
    done_by={"archive-1": 7},
    handed_to={"archive-1": 8},
    returned=1,
    lost=0,
    duplicated=0,
    wrong=0,
    misrecorded=0,
    p50=0.1,
    p95=0.2,
)
WHOLE = Whole(75, Verdict(50, 50, 100, {"billing": ACCOUNT}), ARCHIVED, JOBS, Questions(5, 5, 0.1, 0.2))
"""90 of topics, 7 fetched ones, 20 jobs, a reply and 5 calls were delivered."""

RIGHT = Summary(
    seconds=12.34,
    statuses={"DELIVERED": 123, "REJECTED": 10, "REDUNDANT": 40},
    delivered=123,
    eligible=133,
    p50_ms=12.0,
    p95_ms=4_100.0,
    messages=75,
    bytes=1_250_000,
    senders=(4, 6, 5, 3, 2),
    audited=100,
)


def test_a_summary_that_says_what_the_logs_say_contradicts_nothing() -> None:
    assert [*contradictions(RIGHT, WHOLE)] == []


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (replace(RIGHT, messages=74), "the summary says published 74, the logs say 75"),
        (
            replace(RIGHT, statuses={"DELIVERED": 124, "REJECTED": 10}),
            "the summary says delivered 124, the logs say 123",
        ),
        (replace(RIGHT, statuses={"DELIVERED": 123}), "the summary says rejected 0, the logs say 10"),
        (
            replace(RIGHT, unexplained=1),
            "the ordering audit found 1 deliveries out of order or twice, and no reason for it",
        ),
    ],
)
def test_a_summary_that_says_something_else_is_found_out(wrong: Summary, said: str) -> None:
    assert [*contradictions(wrong, WHOLE)] == [said]


def test_the_figures_are_shown_as_people_read_them() -> None:
    console = Console(width=100)
    with console.capture() as shown:
        console.print(table(RIGHT))
    lines = [" ".join(line.split()) for line in shown.get().splitlines() if line.strip()]
    assert lines[0] == "SUMMARY: what Spark read of it in the broker's database, in 12.3 s"
    assert lines[-6:] == [
        "deliveries 123 DELIVERED, 40 REDUNDANT, 10 REJECTED",
        "success rate 92.5 % of 133",
        "publish to delivery p50 12.0 ms, p95 4.1 s",
        "volume 75 events, 1.2 MB",
        "QUEUE senders 4, 6, 5, 3, 2 jobs; the busiest has 1.50 times the mean",
        "ordering audit 100 checked, 0 unexplained",
    ]


def test_it_says_what_a_run_waits_for(db: None) -> None:
    waiting = Run.objects.create(kind=RunKind.HOURS)
    assert standing(waiting) == f"{waiting} waits for a worker of the queue analytics"
    other = Run.objects.create(kind=RunKind.DAYS, state=RunState.RUNNING, started_at=Now())
    assert standing(waiting) == f"{waiting} waits for {other}"


def test_it_says_how_far_a_run_is(db: None) -> None:
    run = Run.objects.create(kind=RunKind.HOURS, state=RunState.RUNNING, started_at=Now())
    assert standing(run) == f"{run} is under way: Spark starts, and reads"
    RunWindow.objects.create(run=run, start=Now(), end=Now(), state=WindowState.PASSED)
    assert standing(run) == f"{run} is under way, 1 of its windows done"


def test_without_a_summary_it_says_why(db: None) -> None:
    failed = Run.objects.create(kind=RunKind.HOURS, state=RunState.FAILED, error="There is no lake.")
    assert why_not(failed) == f"{failed} FAILED: There is no lake."
    never = Run.objects.create(kind=RunKind.HOURS)
    assert why_not(never) == f"no worker of the queue analytics has taken up {never} within 300 s"
