"""How lines stand, over the API and in the admin."""

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils.dateparse import parse_datetime

from delivery.dispatch.claim import claim
from delivery.maintenance.expiry import expire_overdue
from delivery.models import Attempt, Delivery, Hold, Line
from delivery.operations import cancel_deliveries_of
from delivery.status.line_status import MAX_COUNTED, LineHold, LineState, LineStatus, line_statuses
from delivery.statuses import DeliveryStatus
from subscriptions.admin import configured
from subscriptions.models import Subscription
from tests.support.admin import change_page, messages_of
from tests.support.api import client_of
from tests.support.broker import inactivate, line_of, publish_numbered, retry_line_of
from tests.support.database import execute
from tests.support.factories import subscriber, subscription

LATER = datetime(2999, 1, 2, 3, 4, 5, tzinfo=UTC)
SINCE = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
LINES = "admin:delivery_line_changelist"


@pytest.fixture
def wanted(storage: None) -> Subscription:
    return subscription(subscriber("shop"))


@pytest.fixture
def line(wanted: Subscription) -> Line:
    publish_numbered(wanted.event_type, 3)
    return line_of(wanted.subscriber)


@pytest.fixture
def held(wanted: Subscription, line: Line) -> Line:
    version = wanted.version + wanted.subscriber.version
    head = Delivery.objects.earliest("id")
    Hold.objects.create(
        delivery=head, line=line, since=SINCE, due_at=LATER, failures=1, reason="no answer", config_version=version
    )
    return line


def standing_of(line: Line) -> LineStatus:
    return line_statuses([line.pk])[line.pk]


def over_the_api(name: str = "shop") -> dict[str, Any]:
    answer: dict[str, Any] = client_of().get(f"/api/v1/subscribers/{name}/line").json()
    return answer


def test_a_line_is_idle_or_waiting_and_once_claimed_sending_until_its_lease_runs_out(wanted: Subscription) -> None:
    line = line_of(wanted.subscriber)
    assert standing_of(line) == LineStatus(LineState.IDLE, (), 0, 0, None)
    publish_numbered(wanted.event_type, 3)
    assert standing_of(line) == LineStatus(LineState.WAITING, (), 3, 0, None)
    claim([line.pk], worker="w")
    assert standing_of(line).state == LineState.SENDING
    Line.objects.filter(pk=line.pk).update(lease_until=SINCE)
    assert standing_of(line).state == LineState.WAITING


def test_a_line_whose_subscriber_is_deleted_while_it_is_read_is_not_found(
    wanted: Subscription, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(line_ids: list[int]) -> dict[int, LineStatus]:
        wanted.delete()
        wanted.subscriber.delete()
        return line_statuses(line_ids)

    monkeypatch.setattr("delivery.api.lines.line_statuses", read)
    assert client_of().get("/api/v1/subscribers/shop/line").status_code == 404


@pytest.mark.behaviour("4.6")
def test_a_line_with_only_deferred_deliveries_shows_when_the_next_is_due(line: Line) -> None:
    first, second, third = Delivery.objects.oldest_first()
    for number, one in enumerate([second, first, third]):
        Delivery.objects.filter(pk=one.pk).update(waits_for="RETRY", due_at=LATER + timedelta(hours=number))
    assert standing_of(line) == LineStatus(LineState.DEFERRED, (), 3, 3, LATER)
    told = over_the_api()
    assert (told["state"], told["waiting"], told["deferred"], told["next_try_at"]) == ("DEFERRED", 3, 3, None)
    assert parse_datetime(told["deferred_due_at"]) == LATER
    Delivery.objects.filter(pk=first.pk).update(waits_for="RETRY", due_at=SINCE)
    assert standing_of(line) == LineStatus(LineState.WAITING, (), 3, 3, SINCE)


@pytest.mark.behaviour("1.6", "1.7")
@pytest.mark.parametrize("whose", ["subscription", "subscriber"])
@pytest.mark.parametrize("is_paused", [False, True])
def test_a_line_with_inactive_work_says_so(wanted: Subscription, line: Line, whose: str, *, is_paused: bool) -> None:
    Delivery.objects.filter(pk=Delivery.objects.earliest("id").pk).update(waits_for="RETRY", due_at=LATER)
    if is_paused:
        pause(wanted)
    inactivate(wanted if whose == "subscription" else wanted.subscriber)
    assert standing_of(line) == LineStatus(LineState.INACTIVE, (), 3, 1, None)


def test_sendable_deliveries_count_behind_a_large_inactive_backlog(wanted: Subscription) -> None:
    publish_numbered(wanted.event_type, MAX_COUNTED + 1)
    inactivate(wanted)
    other = subscription(wanted.subscriber)
    publish_numbered(other.event_type, 1)
    assert standing_of(line_of(wanted.subscriber)) == LineStatus(LineState.WAITING, (), MAX_COUNTED, 0, None)


@pytest.mark.behaviour("4.7")
@pytest.mark.parametrize("status", [DeliveryStatus.PENDING, DeliveryStatus.IN_FLIGHT])
def test_a_held_line_says_since_when_why_and_until_when(admin: Client, held: Line, status: DeliveryStatus) -> None:
    Delivery.objects.filter(pk=Delivery.objects.earliest("id").pk).update(status=status)
    hold = LineHold(Delivery.objects.earliest("id").pk, SINCE, "no answer", LATER, failures=1)
    assert standing_of(held) == LineStatus(LineState.HELD, (hold,), 3, 0, None)
    answer = over_the_api()
    assert (answer["state"], answer["held_reason"]) == ("HELD", "no answer")
    assert [parse_datetime(answer[name]) for name in ("held_since", "next_try_at")] == [SINCE, LATER]
    assert "no answer" in change_page(admin, held)
    assert "2999-01-02 03:04:05" in change_page(admin, held)


@pytest.mark.parametrize("what", ["subscription", "subscriber", "cancelled"])
def test_a_hold_counts_while_its_head_can_go(admin: Client, wanted: Subscription, held: Line, what: str) -> None:
    ends: dict[str, Callable[[], object]] = {
        "subscription": lambda: inactivate(wanted),
        "subscriber": lambda: inactivate(wanted.subscriber),
        "cancelled": lambda: cancel_deliveries_of(wanted.pk, reason="unwanted"),
    }
    ends[what]()
    state = LineState.IDLE if what == "cancelled" else LineState.INACTIVE
    assert (standing_of(held).state, standing_of(held).hold) == (state, None)
    answer = over_the_api()
    assert [answer[name] for name in ("held_since", "held_reason", "next_try_at")] == [None, "", None]
    assert "no answer" not in change_page(admin, held)
    assert "2999-01-02" not in change_page(admin, held)


def test_the_list_of_lines_reads_all_states_in_one_query(admin: Client, held: Line) -> None:
    waiting = subscription(subscriber("warehouse"))
    publish_numbered(waiting.event_type, 2)
    for _ in range(10):
        subscriber()
    with CaptureQueriesContext(connection) as queries:
        answer = admin.get(reverse(LINES))
    assert len(queries) <= 8
    assert "no answer" in answer.content.decode()
    found = {
        held_only: admin.get(reverse(LINES), {"held": held_only, "lane__exact": "main"}) for held_only in ("yes", "no")
    }
    assert list(found["yes"].context["cl"].result_list) == [held]
    assert len(found["no"].context["cl"].result_list) == 11


def cancelled() -> list[str]:
    return [*Delivery.objects.filter(status=DeliveryStatus.CANCELLED).values_list("reason", flat=True)]


@pytest.mark.behaviour("1.8")
def test_what_prevents_a_deletion_is_cancelled_on_a_subscriptions_page_once_that_is_confirmed(
    admin: Client, wanted: Subscription, line: Line
) -> None:
    page = reverse("admin:subscriptions_subscription_change", args=[wanted.pk])
    address = reverse("admin:subscriptions_subscription_cancel", args=[wanted.pk])
    deletion = reverse("admin:subscriptions_subscription_delete", args=[wanted.pk])
    refused = messages_of(admin.post(deletion, {"post": "yes"}, follow=True))
    assert refused.startswith("Not deleted. It has unfinished deliveries;")
    assert "Cancel unfinished deliveries" in refused
    assert address in admin.get(page).content.decode()
    assert "Cancel all unfinished deliveries, 3 now?" in admin.get(address).content.decode()
    assert cancelled() == []
    answer = admin.post(address, {"confirmed": "yes"}, follow=True)
    assert answer.redirect_chain == [(page, 302)]
    assert "Cancelled 3 deliveries." in answer.content.decode()
    assert cancelled() == ["cancelled in the admin"] * 3
    admin.post(deletion, {"post": "yes"})
    assert not Subscription.objects.exists()


def test_unfinished_deliveries_of_many_subscriptions_are_cancelled_once_that_is_confirmed(
    admin: Client, wanted: Subscription, line: Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(configured, "EACH_SECONDS", 0)
    other = subscription(event_type=wanted.event_type)
    kept = subscription(event_type=wanted.event_type)
    publish_numbered(wanted.event_type, 2)
    chosen = {"action": "cancel_chosen", "_selected_action": [wanted.pk, other.pk]}
    address = reverse("admin:subscriptions_subscription_changelist")
    assert "deliveries, 7 now?" in admin.post(address, chosen).content.decode()
    assert cancelled() == []
    rest = admin.post(address, {**chosen, "confirmed": "yes"})
    assert (rest.context["chosen"], len(cancelled())) == ([other], 5)
    assert messages_of(rest) == f"Done for 1. The last was {wanted}: Cancelled 5 deliveries. 1 are left."
    done = admin.post(address, {**chosen, "_selected_action": [other.pk], "confirmed": "yes"})
    assert (done.status_code, len(cancelled())) == (302, 7)
    assert set(Delivery.objects.open().values_list("subscription", flat=True)) == {kept.pk}


def test_only_an_unfinished_delivery_says_when_it_is_tried_again(
    management: Client, admin: Client, wanted: Subscription, line: Line
) -> None:
    head = Delivery.objects.earliest("id")
    Delivery.objects.filter(pk=head.pk).update(waits_for="RETRY", due_at=LATER, reason="500 Internal Server Error")
    deliveries = reverse("admin:delivery_delivery_changelist")
    text = admin.get(deliveries).content.decode()
    assert "500 Internal Server Error" in text
    assert "2999-01-02 03:04:05" in text
    assert parse_datetime(management.get(f"/api/v1/deliveries/{head.pk}").json()["due_at"]) == LATER
    cancel_deliveries_of(wanted.pk, reason="unwanted")
    assert "2999-01-02" not in admin.get(deliveries).content.decode()
    assert management.get(f"/api/v1/deliveries/{head.pk}").json()["due_at"] is None


def test_the_list_of_attempts_says_whose_endpoint_was_asked(admin: Client, line: Line) -> None:
    head = Delivery.objects.earliest("id")
    Attempt.objects.create(delivery_id=head.pk, number=1, started_at=SINCE, duration_ms=1)
    assert "shop" in admin.get(reverse("admin:delivery_attempt_changelist")).content.decode()


def test_configuration_pages_link_to_lines_and_deliveries(admin: Client, wanted: Subscription, line: Line) -> None:
    tabs = ("overview", "subscriptions", "deliveries")
    addresses = [reverse("admin:subscriptions_subscriber_place", args=[wanted.subscriber_id, tab]) for tab in tabs]
    text = "".join(admin.get(address).content.decode() for address in addresses)
    assert reverse("admin:delivery_line_change", args=[line.pk]) in text
    subscriptions = reverse("admin:subscriptions_subscription_changelist")
    deliveries = reverse("admin:delivery_delivery_changelist")
    assert f"{subscriptions}?subscriber__id__exact={wanted.subscriber_id}" in text
    assert f"{deliveries}?line__id__exact={line.pk}" in text
    assert admin.get(f"{subscriptions}?subscriber__id__exact={wanted.subscriber_id}").status_code == 200
    text = change_page(admin, wanted)
    assert f"{deliveries}?subscription__id__exact={wanted.pk}" in text
    found = admin.get(f"{deliveries}?subscription__id__exact={wanted.pk}")
    assert len(found.context["cl"].result_list) == 3


@pytest.fixture
def retry_line(wanted: Subscription, line: Line) -> Line:
    """Return the line in which the oldest of three waits to be tried again apart."""
    apart = retry_line_of(wanted.subscriber)
    Delivery.objects.filter(pk=Delivery.objects.earliest("id").pk).update(
        line=apart, waits_for="RETRY", due_at=LATER, attempts=1
    )
    return apart


def pause(wanted: Subscription, **fields: Any) -> None:
    paused = {"paused_since": SINCE, "paused_by": "HAND", "paused_reason": "moving house"}
    Subscription.objects.filter(pk=wanted.pk).update(**paused | fields)


@pytest.mark.behaviour("5.3")
def test_each_line_counts_its_own_and_the_main_line_shows_its_retry_line(line: Line, retry_line: Line) -> None:
    assert standing_of(line) == LineStatus(LineState.WAITING, (), 2, 0, None)
    assert standing_of(retry_line) == LineStatus(LineState.DEFERRED, (), 1, 1, LATER)
    told = over_the_api()
    assert (told["state"], told["waiting"]) == ("WAITING", 2)
    assert (told["retry"]["state"], told["retry"]["waiting"]) == ("DEFERRED", 1)
    assert parse_datetime(told["retry"]["next_due_at"]) == LATER
    Delivery.objects.filter(line=retry_line).update(waits_for="RETRY", due_at=SINCE)
    assert standing_of(retry_line).state == LineState.WAITING


@pytest.mark.behaviour("1.6")
@pytest.mark.parametrize(("waits_for", "due_at"), [("TURN", None), ("RETRY", SINCE), ("START", None)])
def test_a_line_whose_work_is_all_paused_says_so_and_who_paused_it_and_why(
    wanted: Subscription, line: Line, waits_for: str, due_at: datetime | None
) -> None:
    Delivery.objects.update(waits_for=waits_for, due_at=due_at)
    pause(wanted)
    assert (standing_of(line).state, standing_of(line).waiting) == (LineState.PAUSED, 3)
    (told,) = over_the_api()["paused"]
    assert parse_datetime(told.pop("paused_since")) == SINCE
    by_hand = {"paused_by": "HAND", "paused_reason": "moving house", "half_open": False, "probe_due_at": None}
    assert told == {"subscription_id": wanted.pk, **by_hand}


@pytest.mark.behaviour("1.6")
def test_a_line_of_which_something_can_be_sent_is_not_paused(wanted: Subscription, line: Line) -> None:
    pause(wanted)
    publish_numbered(subscription(wanted.subscriber).event_type, 1)
    assert (standing_of(line).state, standing_of(line).waiting) == (LineState.WAITING, 4)
    assert [one["subscription_id"] for one in over_the_api()["paused"]] == [wanted.pk]


@pytest.mark.behaviour("5.6")
def test_retry_lines_are_paused_while_main_lines_probe(wanted: Subscription, line: Line, retry_line: Line) -> None:
    Delivery.objects.filter(line=retry_line).update(waits_for="RETRY", due_at=SINCE)
    pause(wanted, half_open=True)
    assert (standing_of(line).state, standing_of(retry_line).state) == (LineState.WAITING, LineState.PAUSED)
    (told,) = over_the_api()["paused"]
    assert told["half_open"]


@pytest.mark.behaviour("2.13")
def test_a_line_with_only_delayed_deliveries_is_delayed(wanted: Subscription, line: Line) -> None:
    publish_numbered(wanted.event_type, 1)
    Delivery.objects.update(waits_for="START", not_before=LATER)
    assert standing_of(line) == LineStatus(LineState.DELAYED, (), 4, 0, None, delayed=4)
    assert (over_the_api()["state"], over_the_api()["delayed"]) == ("DELAYED", 4)
    first = Delivery.objects.earliest("id")
    told = client_of().get(f"/api/v1/deliveries/{first.pk}").json()
    assert [parse_datetime(told[name]) for name in ("due_at", "not_before")] == [LATER, LATER]
    Delivery.objects.filter(pk=first.pk).update(waits_for="RELEASE", status=DeliveryStatus.HELD)
    assert (standing_of(line).state, standing_of(line).awaiting_release) == (LineState.DELAYED, 1)
    Delivery.objects.filter(pk=first.pk).update(waits_for="TURN", due_at=None, status=DeliveryStatus.PENDING)
    assert standing_of(line).state == LineState.WAITING


@pytest.mark.behaviour("5.3")
def test_the_list_of_lines_leaves_out_empty_retry_lines(admin: Client, line: Line, retry_line: Line) -> None:
    idle = retry_line_of(subscriber("warehouse"))
    shown_lines = [*admin.get(reverse(LINES)).context["cl"].result_list]
    assert (retry_line in shown_lines, idle in shown_lines, line in shown_lines) == (True, False, True)
    assert {*admin.get(reverse(LINES), {"lane__exact": "retry"}).context["cl"].result_list} == {retry_line, idle}


@pytest.mark.behaviour("5.3")
def test_pages_of_main_and_retry_line_link_to_each_other_and_to_deliveries(
    admin: Client, wanted: Subscription, line: Line, retry_line: Line
) -> None:
    pages = [change_page(admin, line), change_page(admin, retry_line)]
    for one, other in ((0, retry_line), (1, line)):
        assert reverse("admin:delivery_line_change", args=[other.pk]) in pages[one]
    listed = f"{reverse('admin:delivery_delivery_changelist')}?line__id__exact={retry_line.pk}"
    assert listed in pages[1]
    publish_numbered(wanted.event_type, MAX_COUNTED)
    for narrowed in ("", "&status__exact=PENDING"):
        found = [*admin.get(listed + narrowed).context["cl"].result_list]
        assert found == [Delivery.objects.get(line=retry_line)]
    assert [*admin.get(listed + "&status__exact=DELIVERED").context["cl"].result_list] == []


@pytest.mark.behaviour("5.3", "5.12")
def test_all_of_a_retry_line_is_found_however_much_is_due(admin: Client, retry_line: Line) -> None:
    first = Delivery.objects.get(line=retry_line)
    execute(
        "INSERT INTO delivery_open (message_id, line_id, subscription_id, status, size, waits_for, due_at)"
        " SELECT message_id, line_id, subscription_id, status, size, waits_for, due_at"
        f" FROM delivery_open, generate_series(1, {MAX_COUNTED}) WHERE id = {first.pk}"
    )
    last = Delivery.objects.latest("id")
    Delivery.objects.filter(pk=last.pk).update(status=DeliveryStatus.HELD, waits_for="RELEASE", due_at=None)
    line = {"line__id__exact": retry_line.pk}
    page = reverse("admin:delivery_delivery_changelist")
    assert [*admin.get(page, line | {"status__exact": "HELD"}).context["cl"].result_list] == [last]
    acting = admin.get(reverse("admin:delivery_delivery_act_on_all"), line, follow=True).content.decode()
    assert f"Cancel {MAX_COUNTED + 1:,}" in acting, re.findall("Cancel [^<]*", acting)


@pytest.mark.behaviour("2.10", "5.3", "5.8")
def test_a_delivery_shows_its_lane_expiry_and_origin(admin: Client, wanted: Subscription, line: Line) -> None:
    first, second, _ = Delivery.objects.oldest_first()
    told = {"expires_at": LATER, "resubmit_of": first.pk, "replay_id": 77}
    Delivery.objects.filter(pk=second.pk).update(
        line=retry_line_of(wanted.subscriber), waits_for="RETRY", due_at=SINCE, **told
    )
    ways = [client_of().get(f"/api/v1/deliveries/{one.pk}").json() for one in (first, second)]
    names = ("lane", "not_before", "resubmit_of", "replay_id")
    assert [[way[name] for name in names] for way in ways] == [["main", *[None] * 3], ["retry", None, first.pk, 77]]
    assert parse_datetime(ways[1]["expires_at"]) == LATER
    page = change_page(admin, second)
    assert reverse("admin:delivery_delivery_change", args=[first.pk]) in page
    assert reverse("admin:delivery_replay_change", args=[77]) in page
    assert "2999-01-02 03:04:05" in page


@pytest.mark.behaviour("5.1", "5.2")
@pytest.mark.parametrize(
    ("of", "by_hand"),
    [({"resubmit_of": 7}, [True, False]), ({"resubmit_of": 7, "replay_id": 8}, [False] * 2), ({}, [False] * 2)],
    ids=["resubmitted", "replayed", "published"],
)
def test_an_attempt_shows_if_it_was_manual_and_its_meaning_under_other_policies_than_teamforge(
    admin: Client, line: Line, of: dict[str, int], by_hand: list[bool]
) -> None:
    head = Delivery.objects.earliest("id")
    Delivery.objects.filter(pk=head.pk).update(**of)
    for number, meaning in ((1, "retry_lane"), (2, None)):
        Attempt.objects.create(
            delivery_id=head.pk, number=number, started_at=SINCE, duration_ms=1, status_code=404, meaning=meaning
        )
    history = client_of().get(f"/api/v1/deliveries/{head.pk}").json()["history"]
    assert ([one["manual"] for one in history], [one["meaning"] for one in history]) == (by_hand, ["retry_lane", None])
    page = change_page(admin, head)
    assert ("1, by hand" in page, "2, by hand" in page) == (by_hand[0], False)
    assert page.count("moves the delivery to the retry line") == 1


@pytest.mark.behaviour("4.10", "5.3")
@pytest.mark.parametrize("end", ["cancelled", "expired"])
def test_a_lost_retry_sequence_is_in_the_main_history(
    admin: Client, wanted: Subscription, line: Line, retry_line: Line, end: str
) -> None:
    Delivery.objects.filter(line=retry_line).update(sequence=7, unreceived=True, expires_at=SINCE)
    if end == "expired":
        expire_overdue()
    else:
        cancel_deliveries_of(wanted.pk, reason="enough")
    told = [(event["kind"], event["sequence"], event["reason"]) for event in over_the_api()["history"]]
    assert told == [("NUMBER_UNCERTAIN", 7, f"{end}; it may never have been sent")]
    assert f"{end}; it may never have been sent" in change_page(admin, line)
