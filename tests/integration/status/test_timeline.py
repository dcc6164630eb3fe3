"""The story of a delivery: requests as they were sent, what followed by which rule, and what it waits for."""

import shlex
import subprocess
from collections.abc import Callable
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone
from django.utils.html import escape
from standardwebhooks import Webhook

from broker_project.core.database_clock import DATABASE_CLOCK
from broker_project.stack.load.receiver import Received, Receiver, answer, raw
from broker_project.stack.load.wait import wait_until
from delivery.models import Attempt, Callback, Delivery, Hold, QueueGroup
from delivery.operations import cancel_deliveries_of
from delivery.outcomes import RetryAction
from delivery.pause import pause_one
from delivery.status.line_status import LineState
from delivery.status.sent_requests import SentRequest
from delivery.status.subscriber_status import subscriber_status
from delivery.status.timeline import EFFECTS, TO_THE_NEXT, exchange_of, timeline_of
from delivery.status.wait import wait_of
from delivery.statuses import WaitsFor
from delivery.webhook.request import masked
from delivery.worker import round_trip
from subscriptions import edit
from subscriptions.models import DeliveryMode, EventKind, PausedBy, Processing, Status, Subscriber, Subscription
from subscriptions.payload_format import PayloadFormat
from tests.support import broker, factories
from tests.support.admin import browser_with, change_page
from tests.support.broker import Worker
from tests.support.mailboxes import hand_out, switch_delivery_mode

pytestmark = pytest.mark.django_db

OF_THE_CONNECTION = ("host", "content-length", "accept", "accept-encoding", "connection")
SECRETS = ("tell-nobody", "nobody-either", "whsec")


def change(one: Any, **changes: object) -> None:
    edit.change(type(one).objects.filter(pk=one.pk), changes=changes)


def shown(received: Received, configured: tuple[str, ...]) -> dict[str, str]:
    """Return the headers of a request that arrived, as they may be shown."""
    sent = {name: value for name, value in received.headers.items() if name not in OF_THE_CONNECTION}
    return {name: "***" if name in configured else masked(name, value) for name, value in sent.items()}


def rebuilt(request: SentRequest | None) -> dict[str, str]:
    assert request
    return {name.lower(): value for name, value in request.headers}


def assert_as_sent(delivery: Delivery, log: list[Received], *configured: tuple[str, ...]) -> None:
    """Compare the requests of a timeline with those that arrived; `configured`: of each, the configured headers."""
    exchanges = timeline_of(delivery, timezone.now()).exchanges
    assert [(one.request and one.request.method, one.request and one.request.body) for one in exchanges] == [
        (one.method, one.body) for one in log
    ]
    for exchange, received, names in zip(exchanges, log, configured, strict=True):
        expected, found = shown(received, names), rebuilt(exchange.request)
        assert found == expected
        assert exchange.request
        assert exchange.request.url.endswith(received.path)


@pytest.mark.behaviour("10.4")
def test_requests_are_shown_as_they_were_sent_whatever_was_changed_since(
    receiver: Receiver, worker: Worker, wanted: Subscription
) -> None:
    receiver.on("/a", answer(500), raw(b""))
    change(wanted, headers={"X-Tenant": "acme", "Authorization": "Bearer tell-nobody"})
    published = [("X-Tag", "<b>"), ("X-Api-Key", "nobody-either"), ("X-Tenant", "the publisher's")]
    broker.publish_bodies(wanted.event_type, b'{"a": 1}', headers=published)
    delivery = Delivery.objects.get()
    wait_until(lambda: Attempt.objects.count() == 1)
    change(wanted, headers={"X-Other": "other"}, output=PayloadFormat.CLOUDEVENTS_STRUCTURED)
    broker.make_due()
    wait_until(lambda: Attempt.objects.count() == 2)
    change(wanted.subscriber, headers={"X-Ours": "ours"})
    change(wanted, endpoint=f"PUT:{receiver.url('/b?c=1')}")
    broker.make_due()
    broker.wait_until_done()
    change(wanted, endpoint="https://elsewhere.example/", headers={})
    delivery.refresh_from_db()
    assert_as_sent(delivery, receiver.log, ("x-tenant", "authorization"), ("x-other",), ("x-other", "x-ours"))
    assert receiver.log[2].is_flagged
    text = repr(timeline_of(delivery, timezone.now()))
    assert not [secret for secret in SECRETS if secret in text]
    assert [one.decision for one in timeline_of(delivery, timezone.now()).exchanges] == [
        "5xx defers the delivery: it is tried again later, and others go on meanwhile (retry policy TeamForge).",
        f"No answer {EFFECTS[RetryAction.HOLD]} (retry policy TeamForge).",
        "2xx ends the delivery as Delivered (retry policy TeamForge).",
    ]


@pytest.mark.behaviour("4.13", "10.4")
@pytest.mark.usefixtures("long_pauses")
def test_a_request_without_a_number_is_shown_without_the_one_that_its_delivery_got_later(
    receiver: Receiver, worker: Worker, wanted: Subscription
) -> None:
    receiver.on("/a", answer(500), answer(500), answer())
    change(wanted.subscriber, processing=Processing.CONCURRENT, concurrency=2)
    broker.publish_bodies(wanted.event_type, b"1")
    wait_until(lambda: Attempt.objects.count() == 1)
    change(wanted.subscriber, processing=Processing.SERIAL, concurrency=1)
    broker.make_due()
    wait_until(lambda: Attempt.objects.count() == 2)
    change(wanted.subscriber, processing=Processing.CONCURRENT, concurrency=2)
    broker.make_due()
    broker.wait_until_done()
    assert ["webhook-sequence" in one.headers for one in receiver.log] == [False, True, True]
    delivery = Delivery.objects.get()
    assert_as_sent(delivery, receiver.log, (), (), ())
    alone = [exchange_of(delivery, one).request for one in Attempt.objects.order_by("id")]
    assert ["webhook-sequence" in rebuilt(one) for one in alone] == [False, True, True]


@pytest.mark.behaviour("10.4")
def test_a_request_that_leaves_in_another_second_than_it_was_built_in_is_signed_again(
    receiver: Receiver, worker: Worker, wanted: Subscription, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(round_trip, "DATABASE_CLOCK", SimpleNamespace(time=lambda: DATABASE_CLOCK.time() - 1))
    broker.publish_numbered(wanted.event_type, 3)
    broker.wait_until_done()
    for delivery, received in zip(Delivery.objects.order_by("pk"), receiver.log, strict=True):
        assert_as_sent(delivery, [received], ())
        Webhook(wanted.signing_secret).verify(received.body, {**received.headers})


@pytest.mark.behaviour("10.4")
def test_what_a_script_made_is_kept_up_to_a_limit(receiver: Receiver, worker: Worker, wanted: Subscription) -> None:
    script = """
        $outmessage = $inmessage.number > 1 ? 'x'.repeat(9000) : 'small';
        $outheader = {'X-Made': 'made', 'X-Session': 'nobody-either'};
        $param = '/' + $inmessage.number;
    """
    change(wanted.event_type, content_type="application/json")
    change(wanted, script=script)
    broker.publish_bodies(wanted.event_type, b'{"number": 1}', b'{"number": 2}', content_type="application/json")
    broker.wait_until_done()
    small, large = Delivery.objects.order_by("pk")
    assert_as_sent(small, receiver.log[:1], ())
    (exchange,) = timeline_of(large, timezone.now()).exchanges
    assert exchange.request
    assert (exchange.request.body, exchange.request.size) == (None, 9000)
    kept = bytes(Attempt.objects.get(delivery=large).sent or b"")
    assert len(kept) < 400
    assert b"nobody-either" not in kept
    factories.subscription(wanted.subscriber, wanted.event_type, receiver.url("/plain"))
    broker.publish_bodies(wanted.event_type, b'{"number": 3}', content_type="application/json")
    broker.wait_until_done()
    assert Attempt.objects.get(delivery__subscription__endpoint=receiver.url("/plain")).sent is None


@pytest.mark.behaviour("10.4")
def test_requests_of_a_group_have_its_number_and_no_callback_address(receiver: Receiver, worker: Worker) -> None:
    job = factories.event_type(kind=EventKind.QUEUE)
    for path in ("/1", "/2"):
        factories.subscription(event_type=job, endpoint=receiver.url(path))
        receiver.on(path, answer(500), answer(200))
    broker.publish_bodies(job, b"{}", callback_url="http://127.0.0.1:9/secret")
    wait_until(lambda: Attempt.objects.count() == 2)
    broker.make_due()
    broker.wait_until_done()
    assert Callback.objects.exists()
    for delivery, path in zip(Delivery.objects.order_by("pk"), ("/1", "/2"), strict=True):
        log = receiver.of(path)
        assert_as_sent(delivery, log, *[()] * len(log))
        assert TO_THE_NEXT in timeline_of(delivery, timezone.now()).exchanges[0].decision
    last = Attempt.objects.latest("pk")
    shown = exchange_of(delivery, last)
    Attempt.objects.filter(pk=last.pk).delete()  # by retention, after it was read
    assert exchange_of(delivery, last) == shown


@pytest.mark.parametrize("body", [b'it\'s\n$HOME `x` "y"', b"@/etc/passwd", b"", "\u00fc\u202e".encode()])
def test_a_command_says_the_request_and_nothing_else_to_a_shell(body: bytes) -> None:
    sent = SentRequest("PUT", "http://h/a?b=c&d='", [("X-A", "b; rm"), ("X-Empty", "")], body, len(body))
    assert shlex.split(sent.curl) == [
        *("curl", "--globoff", "--request", "PUT", sent.url, "--header", "X-A: b; rm", "--header", "X-Empty;"),
        *("--data-raw", body.decode()),
    ]
    binary = SentRequest("POST", "http://h/", [], b"\0\xff", 2)
    assert binary.curl == "printf %s AP8= | base64 -d | curl --globoff --request POST http://h/ --data-binary @-"


@pytest.mark.parametrize("control", ["\r", "\x15", "\x1b[201~", "\x7f", "\x9b"])
def test_nothing_that_a_terminal_obeys_is_copied_or_shown(control: str) -> None:
    text = f"a{control}b"
    sent = SentRequest("POST", "http://h/", [("X-A", text)], text.encode(), len(text.encode()))
    assert (control in sent.curl, control in sent.body_text) == (False, False)
    ran = subprocess.run(
        ["/bin/sh", "-c", f'curl() {{ printf "%s|" "$@"; cat; }}; {sent.curl}'], capture_output=True, check=True
    )
    assert ran.stdout.decode() == f"--globoff|--request|POST|http://h/|--header|X-A: {text}|--data-binary|@-|{text}"


@pytest.mark.behaviour("4.18")
def test_what_has_no_key_says_that_it_waits_behind_the_empty_one(wanted: Subscription) -> None:
    broker.publish_numbered(wanted.event_type, 1)
    keyed = {"processing": Processing.KEYED, "concurrency": 2, "ordering_key": "$$->'Header'->'X-Order'->>0"}
    Subscriber.objects.filter(pk=wanted.subscriber_id).update(**keyed)
    broker.publish_numbered(wanted.event_type, 1)
    first, second = Delivery.objects.order_by("pk")
    Hold.objects.create(delivery=first, line_id=first.line_id or 0, reason="answered 503", due_at=timezone.now())
    behind = wait_of(second, timezone.now())
    assert (first.ordering_key, second.ordering_key, behind and behind.about) == (None, "", first)


@pytest.mark.behaviour("10.4")
def test_a_waiting_delivery_says_what_it_waits_for(admin: Client, wanted: Subscription) -> None:
    broker.publish_numbered(wanted.event_type, 3)
    first, second, third = Delivery.objects.order_by("pk")

    def why(delivery: Delivery) -> str:
        found = wait_of(Delivery.objects.get(pk=delivery.pk), timezone.now())
        return found.why if found else ""

    assert why(first) == "It waits for its turn, and its line for a worker."
    due_at = timezone.now() + timedelta(seconds=41)
    line_id = first.line_id or 0
    Hold.objects.create(delivery=first, line_id=line_id, reason="answered 503", failures=2, due_at=due_at)
    assert why(first) == "It failed: answered 503. Nothing overtakes it."
    behind = wait_of(second, timezone.now())
    assert behind == (f"It waits behind dlv_{first.pk}, which failed: answered 503.", due_at, first)
    assert f'/admin/delivery/delivery/{first.pk}/change/">Delivery dlv_{first.pk}</a>' in change_page(admin, second)
    Delivery.objects.filter(pk=third.pk).update(waits_for=WaitsFor.RETRY, due_at=due_at, reason="answered 500")
    assert why(third) == "It failed: answered 500. It is tried again."
    pause_one(wanted.pk, reason="")
    now = change_page(admin, second).partition('<li class="now">')[2].partition("</li>")[0]
    assert f"/subscriptions/subscription/{wanted.pk}/change/" in now
    assert why(second) == "The subscription is paused. Resume it to go on."
    broker.inactivate(wanted.subscriber)
    assert why(second) == "The subscriber is inactive. Activate it to go on."
    cancel_deliveries_of(wanted.pk, reason="")
    assert why(second) == ""


@pytest.mark.behaviour("9.8", "10.4")
def test_what_is_in_flight_says_so_whatever_was_changed_meanwhile(wanted: Subscription) -> None:
    broker.publish_numbered(wanted.event_type, 2)
    fetched, sent = Delivery.objects.order_by("pk")
    hand_out(fetched)
    Delivery.objects.filter(pk=sent.pk).update(status="IN_FLIGHT")
    changes: tuple[Callable[[], object], ...] = (
        lambda: None,
        lambda: pause_one(wanted.pk, reason=""),
        lambda: switch_delivery_mode(wanted, DeliveryMode.PULL),
        lambda: broker.inactivate(wanted.subscriber),
    )
    for make_change in changes:
        make_change()
        told = [wait_of(one, timezone.now()) for one in Delivery.objects.order_by("pk")]
        assert [one and one.why for one in told] == [
            "It was fetched, and waits to be acknowledged.",
            "Its request is in flight.",
        ]


@pytest.mark.behaviour("5.6", "5.10", "10.4")
def test_what_is_tried_again_says_so_only_where_its_line_sends_it(wanted: Subscription) -> None:
    broker.publish_numbered(wanted.event_type, 2)
    deferred, retried = Delivery.objects.order_by("pk")
    due_at = timezone.now() + timedelta(seconds=41)
    waits = {"waits_for": WaitsFor.RETRY, "due_at": due_at, "reason": "answered 500", "attempts": 1}
    Delivery.objects.filter(pk=deferred.pk).update(**waits)
    Delivery.objects.filter(pk=retried.pk).update(**waits, line=broker.retry_line_of(wanted.subscriber))
    again = "It failed: answered 500. It is tried again."
    hangs = "Its endpoint hangs. It waits until the endpoint has answered in the retry line."
    suspended = "The subscription is suspended by its retry policy until its endpoint answers a probe."
    since = {"paused_since": timezone.now(), "paused_by": PausedBy.POLICY, "probe_due_at": timezone.now()}
    states: tuple[tuple[dict[str, Any], list[str]], ...] = (
        ({}, [again, again]),
        ({"diverted_since": timezone.now()}, [hangs, again]),
        ({"diverted_since": None, **since, "half_open": True}, [again, suspended]),
    )
    for state, told in states:
        Subscription.objects.filter(pk=wanted.pk).update(status=Status.ACTIVE, **state)
        found = [wait_of(one, timezone.now()) for one in Delivery.objects.order_by("pk")]
        assert [one and one.why for one in found] == told


@pytest.mark.behaviour("2.13", "10.4")
def test_a_delayed_job_says_that_it_is_delayed(wanted: Subscription) -> None:
    job = factories.event_type(kind=EventKind.QUEUE)
    factories.subscription(event_type=job)
    later = timezone.now() + timedelta(hours=1)
    broker.publish_bodies(job, b"{}", not_before=later)
    group = QueueGroup.objects.get()
    assert wait_of(Delivery.objects.get(), timezone.now()) == ("It was published with a delay.", later, group)


@pytest.mark.behaviour("10.5")
def test_a_subscriber_says_in_one_sentence_how_it_is_doing(wanted: Subscription) -> None:
    now = timezone.now()

    def sentence() -> str:
        return subscriber_status(wanted.subscriber, now).sentence(now)

    assert sentence() == "Nothing waits."
    broker.publish_numbered(wanted.event_type, 3)
    Delivery.objects.open().update(created_at=now - timedelta(minutes=6))
    assert sentence() == ("Its deliveries can be sent, and wait for a worker. 3 deliveries wait, the oldest for 6 min.")
    delivery = Delivery.objects.earliest("pk")
    Hold.objects.create(
        delivery=delivery,
        line_id=delivery.line_id or 0,
        reason="no answer: Failed to connect",
        failures=9,
        since=now - timedelta(minutes=5),
        due_at=now + timedelta(seconds=41),
    )
    assert sentence() == (
        "Blocked for 5 min: no answer: Failed to connect, 9 tries. 3 deliveries wait, the oldest for 6 min."
        " The next try is in 41 s."
    )
    assert subscriber_status(wanted.subscriber, now).state == LineState.HELD


HOSTILE = "<script>alert(1)</script>"


@pytest.mark.behaviour("10.4")
def test_pages_show_request_and_answer_as_text_to_those_who_may_see_contents(
    admin: Client, wanted: Subscription
) -> None:
    change(wanted, headers={"X-Secret": "tell-nobody"})
    broker.publish_bodies(wanted.event_type, HOSTILE.encode(), headers=[("X-Tag", HOSTILE)])
    delivery = Delivery.objects.get()

    def attempt(number: int) -> Attempt:
        return Attempt.objects.create(
            delivery=delivery,
            number=number,
            started_at=timezone.now(),
            duration_ms=12,
            status_code=500,
            answer_headers=b"HTTP/1.1 500 no\r\nX-A: " + HOSTILE.encode(),
            answer_excerpt=HOSTILE.encode() + b"\xfe",
        )

    first = attempt(1)
    change_page(admin, delivery)  # types of content are read once
    with CaptureQueriesContext(connection) as with_one:
        change_page(admin, delivery)
    for number in range(2, 103):
        attempt(number)
    with CaptureQueriesContext(connection) as with_many:
        page = change_page(admin, delivery)
    assert len(with_many) == len(with_one) <= 30
    assert "2 attempts before are not shown." in page
    counts = {"5xx defers": 100, escape(HOSTILE) + "\\xfe": 1, ">Request and answer<": 99}
    assert {text: page.count(text) for text in counts} == counts
    assert (
        f'/admin/delivery/message/{delivery.message_id}/change/"><span data-copy="id">msg_{delivery.message_id}<'
        in page
    )
    for text in (page, change_page(admin, first)):
        assert HOSTILE not in text
        assert f"X-Tag: {escape(HOSTILE)}" in text
        assert f"{escape(HOSTILE)}\\xfe" in text
        assert "X-Secret: ***" in text
        assert "tell-nobody" not in text
    other = browser_with("delivery.view_delivery", "delivery.view_attempt")
    for row in (delivery, first):
        text = change_page(other, row)
        assert escape(HOSTILE) not in text
        assert "500 in 12 ms" in text or "5xx defers" in text
        assert (wanted.endpoint in text, "http://127.0.0.1" in text) == (False, True)


@pytest.mark.behaviour("10.5")
def test_a_subscribers_pages_say_how_it_is_doing_and_lead_to_each_other(admin: Client, wanted: Subscription) -> None:
    broker.publish_bodies(wanted.event_type, b"{}", b"{}")
    delivery = Delivery.objects.earliest("pk")
    Hold.objects.create(delivery=delivery, line_id=delivery.line_id or 0, reason="answered 503", failures=2)
    base = f"/admin/subscriptions/subscriber/{wanted.subscriber_id}/"
    shown = {
        "overview": ("2 tries", f"/admin/delivery/delivery/{delivery.pk}/change/"),
        "deliveries": (f"/admin/delivery/delivery/{delivery.pk}/change/",),
        "subscriptions": (f"/admin/subscriptions/subscription/{wanted.pk}/change/", wanted.endpoint),
        "change": ("Settings", f"{base}overview/"),
    }
    for tab, texts in shown.items():
        with CaptureQueriesContext(connection) as queries:
            page = admin.get(f"{base}{tab}/").content.decode()
        assert not [text for text in ("2 deliveries wait, the oldest for", *texts) if text not in page]
        assert len(queries) <= 40
    assert admin.get(f"{base}nothing/").status_code == 404
    rows = admin.get("/admin/subscriptions/subscriber/").content.decode()
    assert f"{base}overview/" in rows
    assert "Blocked" in rows
    other = browser_with("subscriptions.view_subscriber")
    assert other.get(f"{base}overview/").headers["Location"] == f"{base}change/"
    assert "deliveries wait" not in other.get(f"{base}change/").content.decode()
    assert "Blocked" not in other.get("/admin/subscriptions/subscriber/").content.decode()
