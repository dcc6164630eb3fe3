"""SYNC answered by a script: `webr://` (contract 8.2, 8.3)."""

import pytest
from django.test import Client

from delivery.models import Attempt, Delivery, Message
from subscriptions.models import EventType
from subscriptions.scripting import jobs, process
from tests.support import factories
from tests.support.api import JSON, Answer, problem_of, publish


def answered_by(client: Client, event_type: EventType, script: str, body: bytes = b'{"n": 2}') -> Answer:
    factories.subscription(event_type=event_type, endpoint="webr://price", script=script)
    return publish(client, body, X_Tenant="blue")


@pytest.mark.behaviour("8.2", "10.3")
@pytest.mark.parametrize(
    ("script", "status", "body", "content_type"),
    [
        ("$outmessage = {price: $inmessage.n * 2.5}", 200, b'{"price":5}', JSON),
        ("$outmessage = $inheader['X-Tenant'][0]; $outheader = {'content-type': 'a/b'}", 200, b"blue", "a/b"),
        ("$outmessage = {detail: 'none'}; $statuscode = 404", 404, b'{"detail":"none"}', JSON),
        ("$statuscode = '503'; $outheader = {'X-Other': 'a', 'Content-Type': 'text/xml'}", 503, b"", "text/xml"),
        ("let $statuscode = 204", 204, b"", JSON),
        ("$statuscode = 304; $outmessage = 'not sent'", 304, b"", JSON),
        ("", 200, b"", JSON),
    ],
)  # fmt: skip
def test_the_publisher_gets_the_answer(
    client: Client, event_type: EventType, script: str, status: int, body: bytes, content_type: str
) -> None:
    answered = answered_by(client, event_type, script or "// nothing")

    assert (answered.status_code, answered.content, answered["Broker-Outcome"]) == (status, body, "answered")
    assert answered["Content-Type"] == content_type
    assert "X-Other" not in answered
    delivery, attempt = Delivery.objects.get(), Attempt.objects.get()
    assert (delivery.status, delivery.line_id) == ("DELIVERED" if status < 300 else "FAILED", None)
    assert (attempt.status_code, bytes(attempt.answer_excerpt), attempt.error) == (status, body, "")


@pytest.mark.behaviour("8.2")
@pytest.mark.parametrize("blank", ["''", "' '", "'\\t'"])
def test_a_blank_header_is_left_out(client: Client, event_type: EventType, blank: str) -> None:
    headers = f"{{'Content-Type': {blank}, 'Retry-After': {blank}, 'content-encoding': ' br '}}"
    answered = answered_by(client, event_type, f"$outmessage = 1; $outheader = {headers}")
    assert (answered.status_code, answered["Content-Encoding"]) == (200, "br")
    assert {"Content-Type", "Retry-After"}.isdisjoint(answered.headers)


DOCUMENTED = """
const cents = {lamp: 250, table: 9900}[$inmessage.item];
if (cents) $outmessage = {cents};
else { $statuscode = 404; $outmessage = {detail: `There is no ${$inmessage.item}.`}; }
"""


@pytest.mark.behaviour("8.2")
@pytest.mark.parametrize(
    ("item", "status", "said"), [("lamp", 200, {"cents": 250}), ("chair", 404, {"detail": "There is no chair."})]
)
def test_the_documented_example(client: Client, event_type: EventType, item: str, status: int, said: object) -> None:
    answered = answered_by(client, event_type, DOCUMENTED, b'{"item": "%s"}' % item.encode())
    assert (answered.status_code, answered.json()) == (status, said)


@pytest.mark.behaviour("8.2", "8.3")
@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("null.x", "script failed: TypeError: cannot read property 'x' of null (line 1)"),
        ("$outmessage = 'x'.repeat(2 ** 21)", "script failed: RangeError: $outmessage is larger than 1 MiB"),
        ("$statuscode = 199", "script failed: $statuscode must be from 200 to 599"),
        ("$statuscode = 600", "script failed: $statuscode must be from 200 to 599"),
        ("$statuscode = 200.5", "script failed: $statuscode must be from 200 to 599"),
        ("$statuscode = 'ok'", "script failed: $statuscode must be from 200 to 599"),
        ("$outheader = {'X-A': 'a\\nb'}", "script failed: "),
    ],
)
def test_a_failing_script_is_an_error(client: Client, event_type: EventType, script: str, reason: str) -> None:
    answered = answered_by(client, event_type, script)

    assert (problem_of(answered), answered["Broker-Outcome"]) == ((500, "script_failed"), "script_failed")
    delivery, attempt = Delivery.objects.get(), Attempt.objects.get()
    assert (delivery.status, delivery.attempts, attempt.status_code) == ("FAILED", 1, None)
    assert delivery.reason == attempt.error
    assert delivery.reason.startswith(reason)
    detail = f"The script of subscription {delivery.subscription_id}, which answers, has failed."
    assert answered.json()["detail"] == detail, "what it has thrown is not for publishers"


@pytest.mark.behaviour("8.3")
def test_an_endless_script_fails_the_call(client: Client, event_type: EventType) -> None:
    answered = answered_by(client, event_type, "while (1);")
    assert problem_of(answered) == (500, "script_failed")
    assert Delivery.objects.get().reason == f"script failed: {jobs.TOO_MUCH_CPU}"


@pytest.mark.behaviour("8.3")
@pytest.mark.usefixtures("unhurried_cpu")
def test_lost_scripts_fail_the_call(client: Client, event_type: EventType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "TOTAL_SECONDS", 0.0)
    answered = answered_by(client, event_type, "while (1);")
    assert problem_of(answered) == (500, "script_failed")
    assert Delivery.objects.get().reason == f"script lost: {jobs.TOO_LONG}"


@pytest.mark.behaviour("8.3")
def test_the_time_and_the_randomness_are_those_of_the_call(client: Client, event_type: EventType) -> None:
    answered = answered_by(client, event_type, "$outmessage = [Date.now(), Math.random() === Math.random()]")
    published_ms = int(Message.objects.get().published_at.timestamp() * 1000)
    assert answered.json() == [published_ms, False]
