"""Pausing by hand, and what it means: over the API, in the admin, in a line, in a queue."""

import threading
from typing import Any

import psycopg
import pytest
from django.db import transaction
from django.test import Client
from django.utils import timezone

from broker_project.core.db import forget_connection, rows
from broker_project.stack.load.receiver import Receiver, answer
from broker_project.stack.load.wait import PATIENCE_SECONDS, wait_until
from delivery.dispatch.claim import claim
from delivery.models import Announcement, Lane, LineEvent, Replay, ReplayKind, ReplayState
from delivery.pause import pause, resume
from subscriptions.models import EventKind, RetryPolicy, Subscription
from subscriptions.models.subscriptions import PausedBy
from tests.support import broker, factories
from tests.support.admin import browser_with
from tests.support.api import client_of
from tests.support.broker import lines_with_due_work

ADMIN = "/admin/subscriptions/subscription"
SOMEBODY_WAITS = "SELECT FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
NOT_PAUSED = {"paused_since": None, "paused_by": "", "paused_reason": "", "half_open": False, "probe_due_at": None}


@pytest.fixture
def operator(db: None) -> Client:
    """Somebody who may look at subscriptions and pause them, and no more."""
    return browser_with("subscriptions.view_subscription", "subscriptions.pause")


def address(subscription: Subscription, action: str) -> str:
    return f"/api/v1/subscriptions/{subscription.pk}/{action}"


def backfilling(subscription: Subscription) -> None:
    paused_otherwise(subscription, PausedBy.BACKFILL)
    Replay.objects.create(kind=ReplayKind.BACKFILL, state=ReplayState.FILING, subscription=subscription)


def paused_otherwise(subscription: Subscription, by: PausedBy, **fields: Any) -> None:
    """Let it be paused by something else than a person."""
    given = {"paused_since": timezone.now(), "paused_by": by, **fields}
    Subscription.objects.filter(pk=subscription.pk).update(**given)


def announced() -> list[tuple[str, dict[str, Any]]]:
    return [*Announcement.objects.order_by("id").values_list("kind", "details")]


@pytest.mark.behaviour("1.6")
def test_a_paused_subscription_resumes_in_order(wanted: Subscription, receiver: Receiver) -> None:
    other = factories.subscription(wanted.subscriber, endpoint=receiver.url("/other"))
    assert pause([wanted.pk], reason="") == [wanted.pk]
    with broker.running_worker():
        bodies = broker.publish_numbered(wanted.event_type, 3)
        broker.publish_numbered(other.event_type, 1)
        wait_until(lambda: broker.statuses(other) == ["DELIVERED"])
        assert (broker.statuses(wanted), receiver.bodies("/a")) == (["PENDING"] * 3, [])
        assert resume([wanted.pk]) == [wanted.pk]
        broker.wait_until_done()
    assert receiver.bodies("/a") == bodies


@pytest.mark.behaviour("1.6", "4.9")
def test_a_head_that_is_paused_holds_nobody_up(wanted: Subscription, receiver: Receiver, long_pauses: None) -> None:
    receiver.on("/a", answer(503))
    other = factories.subscription(wanted.subscriber, endpoint=receiver.url("/other"))
    with broker.running_worker():
        broker.publish_numbered(wanted.event_type, 1)
        broker.wait_until_held(wanted.subscriber)
        broker.publish_numbered(other.event_type, 1)
        pause([wanted.pk], reason="")
        wait_until(lambda: broker.statuses(other) == ["DELIVERED"])
    assert broker.statuses(wanted) == ["PENDING"]


@pytest.mark.behaviour("1.6", "4.9")
def test_a_policy_edit_locks_in_the_order_of_pauses(wanted: Subscription, elsewhere: "psycopg.Connection[Any]") -> None:
    policy, newer = factories.retry_policy(), factories.subscription()
    for one in (newer, wanted):  # so the older one is found behind the newer
        Subscription.objects.filter(pk=one.pk).update(retry_policy=policy)
    elsewhere.execute("SELECT FROM subscriptions_subscription WHERE id = %s FOR NO KEY UPDATE", [wanted.pk])

    def edit() -> None:
        RetryPolicy.objects.filter(pk=policy.pk).update(description="edited")
        forget_connection()

    editing = threading.Thread(target=edit)
    editing.start()
    wait_until(lambda: rows(SOMEBODY_WAITS))
    with transaction.atomic():
        free = Subscription.objects.filter(pk=newer.pk).select_for_update(no_key=True, skip_locked=True)
        assert [*free] == [newer]
    elsewhere.rollback()
    editing.join(PATIENCE_SECONDS)
    assert {*Subscription.objects.filter(retry_policy=policy).values_list("version", flat=True)} == {3}


@pytest.mark.behaviour("1.6")
def test_over_the_api_it_is_paused_with_a_reason_and_resumed(wanted: Subscription) -> None:
    own = client_of(wanted.subscriber)
    paused = own.post(address(wanted, "pause"), {"reason": "moving house"})
    shown = {name: paused.json()[name] for name in NOT_PAUSED}
    assert (paused.status_code, paused["ETag"], paused.json()["status"]) == (200, '"2"', "ACTIVE")
    told = {"paused_since": shown["paused_since"], "paused_by": "HAND", "paused_reason": "moving house"}
    assert shown == {**NOT_PAUSED, **told}
    again = own.post(address(wanted, "pause"), {"reason": "another"})
    assert (again.status_code, again.json()) == (200, paused.json())
    resumed = [own.post(address(wanted, "resume")) for _ in range(2)]
    assert [(one.status_code, one["ETag"]) for one in resumed] == [(200, '"3"')] * 2
    assert [{name: one.json()[name] for name in NOT_PAUSED} for one in resumed] == [NOT_PAUSED] * 2


@pytest.mark.behaviour("5.7")
def test_a_pause_by_hand_is_in_the_history_and_announced_once(wanted: Subscription) -> None:
    for _ in range(2):
        pause([wanted.pk], reason="moving house")
    for _ in range(2):
        resume([wanted.pk])
    line = broker.line_of(wanted.subscriber).pk
    assert [*LineEvent.objects.order_by("id").values_list("line", "kind", "reason")] == [
        (line, "PAUSED", f"subscription {wanted.pk}: moving house"),
        (line, "RESUMED", f"subscription {wanted.pk}"),
    ]
    assert announced() == [
        ("Broker.Line.Paused", {"pause": "BY_HAND", "reason": "moving house"}),
        ("Broker.Line.Resumed", {"pause": "BY_HAND", "reason": ""}),
    ]
    assert {*Announcement.objects.values_list("line", "subscription")} == {(line, wanted.pk)}


@pytest.mark.behaviour("5.7")
def test_a_subscription_to_announcements_pauses_silently(storage: None) -> None:
    itself = factories.subscription(event_pattern="Broker.*")
    pause([itself.pk], reason="")
    resume([itself.pk])
    assert (announced(), LineEvent.objects.count()) == ([], 2)


@pytest.mark.behaviour("5.6")
def test_by_hand_wins_over_a_policy(wanted: Subscription) -> None:
    paused_otherwise(wanted, PausedBy.POLICY, half_open=True, probe_due_at=timezone.now())
    pause([wanted.pk], reason="enough")
    wanted.refresh_from_db()
    assert (wanted.paused_by, wanted.half_open, wanted.probe_due_at, wanted.is_sending) == ("HAND", False, None, False)
    assert announced() == [], "that it is paused had been announced"
    paused_otherwise(wanted, PausedBy.POLICY)
    assert resume([wanted.pk]) == [wanted.pk]
    assert announced() == [("Broker.Line.Resumed", {"pause": "SUSPENDED", "reason": ""})]


@pytest.mark.behaviour("5.8")
def test_a_backfilled_subscription_is_not_paused_by_hand(wanted: Subscription) -> None:
    backfilling(wanted)
    answers = [client_of().post(address(wanted, action)) for action in ("pause", "resume")]
    assert [(one.status_code, one.json()["code"]) for one in answers] == [(409, "backfilling")] * 2
    both = [
        client_of().post(f"/api/v1/subscribers/{wanted.subscriber}/{action}").json() for action in ("pause", "resume")
    ]
    assert both == [{"changed": 0}] * 2


@pytest.mark.behaviour("5.8")
def test_the_admin_says_why_a_backfill_is_not_resumed(wanted: Subscription, operator: Client) -> None:
    backfilling(wanted)
    said = operator.post(f"{ADMIN}/{wanted.pk}/resume/", {"_form_submitted": "on"}, follow=True).content.decode()
    wanted.refresh_from_db()
    assert ("It is being backfilled" in said, wanted.paused_by) == (True, "BACKFILL")


@pytest.mark.behaviour("1.6")
def test_a_subscriber_pauses_with_all_it_has_but_sync(wanted: Subscription) -> None:
    jobs = factories.subscription(wanted.subscriber, factories.event_type(kind=EventKind.QUEUE))
    sync = factories.subscription(wanted.subscriber, factories.event_type(kind=EventKind.SYNC))
    stranger = factories.subscription()
    own = client_of(wanted.subscriber)
    assert own.post(f"/api/v1/subscribers/{wanted.subscriber}/pause", {"reason": "so"}).json() == {"changed": 2}
    paused = Subscription.objects.exclude(paused_since=None)
    assert {*paused.values_list("pk", "paused_reason")} == {(wanted.pk, "so"), (jobs.pk, "so")}
    assert {*Subscription.objects.filter(is_sending=True)} == {sync, stranger}
    assert own.post(f"/api/v1/subscribers/{wanted.subscriber}/resume").json() == {"changed": 2}
    refused = [own.post(address(sync, action)) for action in ("pause", "resume")]
    assert [(one.status_code, one.json()["code"]) for one in refused] == [(400, "not_pausable")] * 2


@pytest.mark.behaviour("1.2")
@pytest.mark.parametrize("action", ["pause", "resume"])
def test_subscribers_pause_their_own_subscriptions_only(wanted: Subscription, action: str) -> None:
    stranger, shop = client_of(factories.subscriber()), client_of(factories.publisher())
    addresses = [address(wanted, action), f"/api/v1/subscribers/{wanted.subscriber}/{action}"]
    assert [stranger.post(one).status_code for one in addresses] == [404, 404]
    assert [shop.post(one).status_code for one in addresses] == [403, 403]
    assert Subscription.objects.get().version == 1


@pytest.mark.parametrize("body", [{"reason": 5}, {"reason": None}, {"reason": "x" * 1001}, {"why": "so"}, []])
def test_a_body_that_is_no_reason_is_refused(wanted: Subscription, body: dict[str, Any]) -> None:
    assert client_of().post(address(wanted, "pause"), body).status_code == 400
    assert client_of().post(address(wanted, "resume"), {"reason": "so"}).status_code == 400
    assert Subscription.objects.get().version == 1


@pytest.mark.behaviour("1.6", "6.1")
def test_a_queue_endpoint_that_is_paused_gets_no_job_until_it_is_resumed(storage: None, receiver: Receiver) -> None:
    jobs = factories.event_type(kind=EventKind.QUEUE)
    paused, other = (factories.subscription(event_type=jobs, endpoint=receiver.url(f"/{n}")) for n in "ab")
    pause([paused.pk], reason="")
    with broker.running_worker():
        broker.publish_numbered(jobs, 4)
        broker.wait_until_done()
        assert (receiver.of("/a"), len(receiver.of("/b"))) == ([], 4)
        pause([other.pk], reason="")
        broker.publish_numbered(jobs, 2)
        resume([paused.pk])
        broker.wait_until_done()
    assert (len(receiver.of("/a")), len(receiver.of("/b"))) == (2, 4)


def test_both_lines_of_the_subscriber_have_work_again(wanted: Subscription) -> None:
    pause([wanted.pk], reason="")
    broker.publish_numbered(wanted.event_type, 1)
    main, retry = (wanted.subscriber.lines.get(lane=lane) for lane in (Lane.MAIN, Lane.RETRY))
    assert lines_with_due_work() == []
    resume([wanted.pk])
    assert lines_with_due_work() == [main.pk]
    (taken,) = claim([main.pk], worker="w")
    assert [one.content.body for one in broker.outgoing_of(taken)] == [b"0"]
    assert retry.events.count() == 0


@pytest.mark.behaviour("1.6")
def test_in_the_admin_one_is_paused_and_resumed_from_its_page(wanted: Subscription, operator: Client) -> None:
    page = f"{ADMIN}/{wanted.pk}"
    assert offered(operator, page) == {"pause"}
    operator.post(f"{page}/pause/", {"_form_submitted": "on"})
    wanted.refresh_from_db()
    assert (wanted.paused_by, wanted.paused_reason, offered(operator, page)) == ("HAND", "in the admin", {"resume"})
    assert b"paused" in operator.get(f"{ADMIN}/").content
    operator.post(f"{page}/resume/", {"_form_submitted": "on"})
    wanted.refresh_from_db()
    assert (wanted.paused_by, offered(operator, page)) == ("", {"pause"})


@pytest.mark.behaviour("1.6")
def test_the_page_of_what_is_paused_says_so_beside_its_status(wanted: Subscription, operator: Client) -> None:
    page = f"{ADMIN}/{wanted.pk}/change/"
    status = "event_pattern", "status", "delivery_mode"
    assert " ".join(status) in " ".join(fields_on(operator, page))
    pause([wanted.pk], reason="their move")
    details = "pause_label", "paused_since", "paused_by", "paused_reason", "probe_due_at"
    assert " ".join(["event_pattern status", *details, "delivery_mode"]) in " ".join(fields_on(operator, page))
    shown = operator.get(page).content.decode()
    assert shown.index("their move") < shown.index(wanted.endpoint)


def fields_on(browser: Client, page: str) -> list[str]:
    """Return the names of a page's fields, from its top on."""
    return [name for fieldset in browser.get(page).context["adminform"] for line in fieldset for name in line.fields]


def offered(browser: Client, page: str) -> set[str]:
    shown = browser.get(f"{page}/change/").content.decode()
    return {action for action in ("pause", "resume", "inactivate") if f"{page}/{action}" in shown}


@pytest.mark.behaviour("1.6")
def test_in_the_admin_many_are_paused_after_a_question(wanted: Subscription, operator: Client) -> None:
    kind = factories.event_type(kind=EventKind.SYNC)
    sync = [factories.subscription(event_type=kind, header_filter_string=str(number)) for number in range(5)]
    chosen = {"action": "pause_chosen", "_selected_action": [wanted.pk, *(one.pk for one in sync)]}
    assert "Pause these?" in operator.post(f"{ADMIN}/", chosen).content.decode()
    assert Subscription.objects.filter(paused_by="HAND").count() == 0
    done = operator.post(f"{ADMIN}/", {**chosen, "confirmed": "yes"}, follow=True)
    assert Subscription.objects.get(paused_by="HAND") == wanted
    ((message, level),) = [(str(one), one.level_tag) for one in done.context["messages"]]
    why = "SYNC subscriptions cannot be paused; inactivate it instead."
    named = " ".join(f"{one}: {why}" for one in sync[:3])
    assert (message, level) == (f"Done for 1, not done for 5. {named} And 2 more.", "warning")
    assert offered(operator, f"{ADMIN}/{sync[0].pk}") == set()
