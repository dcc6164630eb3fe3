"""Replays over the API and in the admin."""

import re
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import urlencode

import pytest
from django.db.models.functions import Now
from django.test import Client
from django.urls import reverse

from broker_project.stack.load.receiver import Receiver
from delivery.models import Delivery, Message, Replay, ReplayState
from delivery.replay import job_steps
from subscriptions.models import EventKind, Status, Subscriber, Subscription
from tests.support import factories
from tests.support.admin import browser_with, change_page, messages_of
from tests.support.api import EVENT, client_of, client_of_admin, client_with, problem_of
from tests.support.broker import publish_bodies, run_worker_until_done
from tests.support.replays import BODY, end_open, ended, run_replays, start_backfill, state_of

pytestmark = pytest.mark.behaviour("5.8")

REPLAYS = "/api/v1/replays"

ALL = {"statuses": ["REJECTED", "FAILED"]}
NEW = "/admin/delivery/replay/new/"
CONFIRMED = {"_form_submitted": "on"}


@pytest.fixture
def rejected_shop(shop: Subscription) -> Subscription:
    """A subscription of which three deliveries were rejected."""
    ended(shop, 3)
    return shop


def ask(client: Client, **asked: Any) -> Any:
    return client.post(REPLAYS, asked)


def test_a_dry_run_counts_and_makes_nothing(rejected_shop: Subscription) -> None:
    for asked in ({"subscription": rejected_shop.pk}, {"subscriber": "shop"}):
        counted = ask(client_of(), **asked, dry_run=True)
        counts = {"count": 3, "by_status": {"REJECTED": 3}, "complete": True}
        assert (counted.status_code, counted.json()) == (200, counts)
    assert not Replay.objects.exists()


def sync_subscription(subscriber: Subscriber) -> Subscription:
    """Make a subscription that is sent nothing that could be sent again."""
    return factories.subscription(subscriber, factories.event_type(kind=EventKind.SYNC))


def test_a_replay_is_accepted_watched_and_listed(rejected_shop: Subscription) -> None:
    client = client_of(rejected_shop.subscriber)
    times = {"from": "2026-01-01T00:00:00+00:00", "to": "2100-01-01T00:00:00+00:00"}
    asked = {"event_type": EVENT, "statuses": ["REJECTED"], **times}
    accepted = ask(client, subscription=rejected_shop.pk, max_per_second=100_000, **asked)
    assert accepted.status_code == 202
    begun = accepted.json()
    assert (begun["kind"], begun["state"], begun["total"], begun["created"]) == ("REPLAY", "COUNTING", 0, 0)
    assert begun["selection"] == {"subscriber": "shop", "subscriptions": [rejected_shop.pk], **asked}
    Replay.objects.update(pace=None)
    run_replays()
    done = client.get(accepted["Location"]).json()
    assert (done["state"], done["created"], done["skipped"]) == ("DONE", 3, 0)
    assert client.get(REPLAYS, {"state": "DONE"}).json()["items"] == [done]
    assert client.get(REPLAYS, {"state": "RUNNING"}).json()["items"] == []
    assert Delivery.objects.filter(replay_id=done["id"]).count() == 3


@pytest.mark.parametrize(
    "asked",
    [
        {},
        {"subscription": "own", "subscriber": "shop"},
        {"subscriber": "nobody"},
        {"subscriber": "idle"},
        {"subscription": "sync"},
        {"subscription": 10**17},
        {"subscription": "1"},
        {"subscription": "own", "statuses": []},
        {"subscription": "own", "statuses": ["PENDING"]},
        {"subscription": "own", "statuses": ["REDUNDANT"]},
        {"subscription": "own", "from": "2026-01-02T00:00:00Z", "to": "2026-01-02T00:00:00Z"},
        {"subscription": "own", "from": "yesterday"},
        {"subscription": "own", "from": "0001-01-01T00:00:00Z"},
        {"subscription": "own", "from": "2026-01-02T00:00:00"},
        {"subscription": "own", "to": "2026-01-02"},
        {"subscription": "own", "max_per_second": 0},
        {"subscription": "own", "event_type": "Unknown"},
        {"subscription": "own", "rate_limiter": 1},
    ],
)
def test_an_invalid_selection_is_refused(rejected_shop: Subscription, asked: dict[str, Any]) -> None:
    ids = {"own": rejected_shop.pk, "sync": sync_subscription(factories.subscriber("idle")).pk}
    given = {name: ids.get(value, value) if isinstance(value, str) else value for name, value in asked.items()}
    assert problem_of(ask(client_of(), **given)) == (400, "invalid")
    assert not Replay.objects.exists()


def test_cancelling_is_idempotent_and_refused_for_finished_replays(rejected_shop: Subscription) -> None:
    client = client_of(rejected_shop.subscriber)
    address = ask(client, subscription=rejected_shop.pk)["Location"]
    for _ in range(2):
        cancelled = client.post(f"{address}/cancel")
        assert (cancelled.status_code, cancelled.json()["state"]) == (200, "CANCELLED")
    done = ask(client, subscription=rejected_shop.pk)["Location"]
    run_replays()
    assert problem_of(client.post(f"{done}/cancel")) == (409, "finished")
    assert client.post(f"{REPLAYS}/{10**17}/cancel").status_code == 404


@pytest.mark.behaviour("1.2", "5.8")
def test_who_may_not_inactivate_a_subscription_does_not_cancel_its_backfill(shop: Subscription) -> None:
    late = factories.subscription(shop.subscriber, shop.event_type, status=Status.INACTIVE)
    backfill = start_backfill(late)
    keys = [factories.api_key(shop.subscriber, scopes=scopes)[1] for scopes in (["operate"], ["operate", "configure"])]
    operating, configuring = map(client_with, keys)
    refused = operating.post(f"{REPLAYS}/{backfill.pk}/cancel")
    assert (problem_of(refused), refused.json()["scope"]) == ((403, "missing_scope"), "configure")
    browser = browser_with("delivery.view_replay", "delivery.replay")
    assert f"/{backfill.pk}/cancel" not in change_page(browser, backfill)
    assert browser.post(reverse("admin:delivery_replay_cancel", args=[backfill.pk]), CONFIRMED).status_code == 403
    late.refresh_from_db()
    assert (late.status, state_of(backfill)) == (Status.ACTIVE, "WAITING")
    assert configuring.post(f"{REPLAYS}/{backfill.pk}/cancel").json()["state"] == "CANCELLING"
    replay = ask(operating, subscription=shop.pk).json()["id"]
    assert f"/{replay}/cancel" in change_page(browser, Replay.objects.get(pk=replay))
    assert operating.post(f"{REPLAYS}/{replay}/cancel").json()["state"] == "CANCELLED"


def test_a_selection_shows_names_that_a_list_reads_at_once(
    management: Client, rejected_shop: Subscription, django_assert_max_num_queries: Any
) -> None:
    sync_subscription(rejected_shop.subscriber)
    for more in ({}, *[{"event_type": EVENT}] * 3):
        ask(management, subscriber="shop", **more)
    with django_assert_max_num_queries(6):
        told = [one["selection"] for one in management.get(REPLAYS).json()["items"]]
    named = [(one["subscriber"], one["event_type"], one["subscriptions"]) for one in told]
    assert named == [*[("shop", EVENT, [rejected_shop.pk])] * 3, ("shop", None, [rejected_shop.pk])]


@pytest.mark.behaviour("1.2")
def test_only_management_sees_who_started_a_replay(rejected_shop: Subscription) -> None:
    management, own = client_of(), client_with(factories.api_key(rejected_shop.subscriber, label="own")[1])
    made = [ask(client, subscription=rejected_shop.pk).json() for client in (management, own)]
    assert made[1]["created_by"] is None
    cancelled = own.post(f"{REPLAYS}/{made[0]['id']}/cancel").json()
    listed = [one["created_by"] for one in own.get(REPLAYS).json()["items"]]
    assert [cancelled["created_by"], *listed] == [None] * 3
    told = {one["id"]: one["created_by"] for one in management.get(REPLAYS).json()["items"]}
    assert "own" in told[made[1]["id"]]
    assert told[made[0]["id"]]


def form_of(delivery: Delivery) -> str:
    return reverse("admin:delivery_delivery_resubmit", args=[delivery.pk])


def test_a_delivery_is_resubmitted_unchanged_from_its_page(rejected: Delivery) -> None:
    admin, page = client_of_admin(), reverse("admin:delivery_delivery_change", args=[rejected.pk])
    assert f"/{rejected.pk}/resubmit" in admin.get(page).content.decode()
    shown = admin.get(form_of(rejected)).content.decode()
    assert "&quot;n&quot;: 1" in shown
    assert Delivery.objects.count() == 1
    # A browser sends every end of a line as CR LF.
    sent = admin.post(form_of(rejected), {"body": '{\r\n "n": 1\r\n}'}, follow=True)
    assert f"This is a resubmission of dlv_{rejected.pk}." in sent.content.decode()
    new = Delivery.objects.latest("id")
    assert (new.resubmit_of, new.message_id) == (rejected.pk, rejected.message_id)
    for one, other in ((rejected, new), (new, rejected)):
        shown = change_page(admin, one)
        assert f"/admin/delivery/delivery/{other.pk}/change/" in shown
    assert "resubmit" not in change_page(admin, new)


def test_an_edited_body_is_sent_and_a_wrong_one_refused(admin: Client, rejected: Delivery, receiver: Receiver) -> None:
    assert "The body is not JSON" in admin.post(form_of(rejected), {"body": "{"}).content.decode()
    assert Delivery.objects.count() == 1
    admin.post(form_of(rejected), {"body": "[\r\n2]"})
    assert [bytes(one.body) for one in Message.objects.order_by("id")] == [BODY, b"[\n2]"]
    run_worker_until_done()
    assert receiver.bodies("/hook") == [b"[\n2]"]


@pytest.mark.parametrize("body", [b"\xff\xfe", b"\n{}", b"\r\n{}", b"{\0}"])
def test_a_body_that_no_browser_sends_back_is_sent_unchanged(shop: Subscription, body: bytes) -> None:
    binary = factories.event_type(content_type="image/png")
    factories.subscription(shop.subscriber, binary)
    publish_bodies(binary, body)
    end_open()
    client_of_admin().post(form_of(Delivery.objects.get()), {"body": ""})
    assert Message.objects.count() == 1
    assert Delivery.objects.count() == 2


def test_a_body_that_its_sender_may_not_see_is_sent_unchanged(rejected: Delivery) -> None:
    sender = browser_with("delivery.view_delivery", "delivery.replay")
    assert sender.post(form_of(rejected), {"body": ""}).status_code == 302
    assert Message.objects.count() == 1
    assert Delivery.objects.count() == 2


def seal_in(page: str) -> str:
    """Return what the page's button would confirm."""
    (found,) = re.findall(r'name="counted" value="([^"]+)"', page)
    return str(found)


def begun(admin: Client, **asked: object) -> Replay:
    """Count, and replay what was counted."""
    counted = admin.post(NEW, {**asked, **ALL}).content.decode()
    admin.post(NEW, {"counted": seal_in(counted)})
    return Replay.objects.latest("id")


def test_many_are_counted_and_replayed_when_asked(admin: Client, rejected: Delivery, shop: Subscription) -> None:
    assert NEW in admin.get(reverse("admin:delivery_replay_changelist")).content.decode()
    asked = {"subscriber": shop.subscriber_id, "pace": "5", **ALL}
    counted = admin.post(NEW, asked).content.decode()
    assert "1 delivery: 1 rejected." in counted
    assert not Replay.objects.exists()
    page = admin.post(NEW, {"counted": seal_in(counted)}, follow=True).content.decode()
    assert "The replay has started." in page
    assert "counting: 0 so far" in page
    replay = Replay.objects.get()
    assert (replay.pace, replay.created_by, replay.subscription_id) == (5, "admin", None)
    replay.state, replay.total = ReplayState.RUNNING, 4
    replay.filed = 1
    replay.save()
    for address in (reverse("admin:delivery_replay_changelist"), f"/admin/delivery/replay/{replay.pk}/change/"):
        shown = admin.get(address).content.decode()
        assert "1 of 4" in shown
        assert "width: 25%" in shown
    assert "Failed, Rejected" in shown


def test_the_confirmed_selection_is_the_counted_one(admin: Client, rejected: Delivery, shop: Subscription) -> None:
    seal = seal_in(admin.post(NEW, {"subscription": shop.pk, **ALL}).content.decode())
    admin.post(NEW, {"counted": seal, "subscription": shop.pk, "statuses": ["DELIVERED"]})
    assert Replay.objects.get().selection["statuses"] == ["FAILED", "REJECTED"]
    for forged in ("", "x", seal[:-1]):
        assert "Count again" in admin.post(NEW, {"counted": forged}, follow=True).content.decode()
    admin.post(NEW, {"subscription": shop.pk, **ALL, "confirmed": "yes"})
    assert Replay.objects.count() == 1


def test_a_subscription_that_was_deleted_since_the_count_is_reported(admin: Client, shop: Subscription) -> None:
    ended(shop, 1)
    seal = seal_in(admin.post(NEW, {"subscription": shop.pk, **ALL}).content.decode())
    shop.delete()
    page = admin.post(NEW, {"counted": seal}, follow=True)
    assert (messages_of(page), page.redirect_chain) == ("The subscription was deleted meanwhile.", [(NEW, 302)])
    assert not Replay.objects.exists()


def test_where_nothing_was_found_nothing_is_offered(rejected: Delivery, shop: Subscription) -> None:
    counted = client_of_admin().post(NEW, {"subscription": shop.pk, "statuses": ["EXPIRED"]}).content.decode()
    assert "0 deliveries." in counted
    assert "Start replay" not in counted


def test_where_only_the_oldest_were_looked_at_it_is_offered_all_the_same(
    rejected: Delivery, shop: Subscription, monkeypatch: pytest.MonkeyPatch
) -> None:
    Delivery.objects.update(created_at=Now() - timedelta(hours=5))
    ended(shop, 2)
    monkeypatch.setattr(job_steps, "COUNT_SLICE", 1)
    monkeypatch.setattr(job_steps, "MAX_COUNTED", 1)
    admin, since = client_of_admin(), datetime.now(UTC) - timedelta(hours=1)
    asked = {"subscription": shop.pk, "begin": f"{since:%Y-%m-%d %H:%M}", **ALL}
    counted = admin.post(NEW, asked).content.decode()
    assert "0 or more deliveries." in counted
    assert "the replay includes all" in counted
    assert "Start replay" in counted
    admin.post(NEW, {"counted": seal_in(counted)})
    run_replays()
    assert Replay.objects.get().filed == 2


@pytest.mark.parametrize(
    ("asked", "text"),
    [
        ({"subscription": ""}, "Choose either a subscription or a subscriber."),
        ({"subscriber": "own"}, "Choose either a subscription or a subscriber."),
        ({"subscription": "", "subscriber": "idle"}, "It is sent nothing that could be sent again"),
        ({"subscription": "0"}, "Select a valid choice."),
        ({"subscription": "sync"}, "It is sent nothing that could be sent again"),
        ({"event_type": "0"}, "Select a valid choice."),
        ({"begin": "2026-01-02", "end": "2026-01-01"}, "must be later than the start"),
        ({"begin": "0001-01-01T00:00+14:00"}, "No delivery is of that year"),
        ({"end": "9999-12-31T23:00-14:00"}, "No delivery is of that year"),
        ({"statuses": []}, "required"),
    ],
)
def test_an_invalid_selection_is_reported(shop: Subscription, asked: dict[str, str], text: str) -> None:
    sync = sync_subscription(factories.subscriber("idle"))
    ids = {"own": shop.subscriber_id, "idle": sync.subscriber_id, "sync": sync.pk}
    given = {name: ids.get(value, value) if isinstance(value, str) else value for name, value in asked.items()}
    page = client_of_admin().post(NEW, {"subscription": shop.pk, **ALL, **given}).content.decode()
    assert text in page
    assert "Start replay" not in page


def test_lists_and_pages_lead_to_their_replays(admin: Client, rejected: Delivery, shop: Subscription) -> None:
    lists: list[tuple[str, dict[str, Any]]] = [
        ("delivery", {"subscription__id__exact": shop.pk, "status__exact": "DELIVERED"}),
        ("deadletter", {"subscription__id__exact": shop.pk, "reason": "REJECTED"}),
    ]
    for model, narrowed in lists:
        address = f"/admin/delivery/{model}/"
        action = f"{address}replay_these/"
        link = f'href="{action}?{urlencode(narrowed)}"'.replace("&", "&amp;")
        assert link in admin.get(address, narrowed).content.decode()
        form = admin.get(action, narrowed, follow=True).context["form"]
        assert form.initial == {"subscription": str(shop.pk), "statuses": [[*narrowed.values()][1]]}
    by_line: dict[str, Any] = {"line__id__exact": rejected.line_id, "status__exact": "PENDING"}
    form = admin.get("/admin/delivery/delivery/replay_these/", by_line, follow=True).context["form"]
    assert form.initial == {"subscriber": str(shop.subscriber_id)}
    for more, told in (({}, "status"), ({"header": "X-Team", "from": "1h"}, "header, status")):
        page = admin.get("/admin/delivery/delivery/replay_these/", {**by_line, **more}, follow=True)
        assert f"A replay is not narrowed by {told} as the list is" in messages_of(page)
    page = admin.get(reverse("admin:subscriptions_subscription_replay", args=[shop.pk]), follow=True)
    assert page.context["form"].initial == {"subscription": str(shop.pk)}
    sync = sync_subscription(factories.subscriber())
    pages = {one.pk: reverse("admin:subscriptions_subscription_change", args=[one.pk]) for one in (shop, sync)}
    assert [f"/{pk}/replay/" in admin.get(page).content.decode() for pk, page in pages.items()] == [True, False]


def test_a_running_replay_is_cancelled_from_its_page(admin: Client, rejected: Delivery, shop: Subscription) -> None:
    replay = begun(admin, subscription=shop.pk)
    page = reverse("admin:delivery_replay_change", args=[replay.pk])
    assert f"/{replay.pk}/cancel" in admin.get(page).content.decode()
    admin.post(reverse("admin:delivery_replay_cancel", args=[replay.pk]), CONFIRMED)
    replay.refresh_from_db()
    assert (replay.state, replay.reason) == ("CANCELLED", "cancelled in the admin")
    assert f"/{replay.pk}/cancel" not in admin.get(page).content.decode()


def test_a_new_one_is_backfilled_after_a_question(admin: Client, rejected: Delivery, shop: Subscription) -> None:
    late = factories.subscription(event_type=shop.event_type, status=Status.INACTIVE)
    address = reverse("admin:subscriptions_subscription_backfill", args=[late.pk])
    pages = [reverse("admin:subscriptions_subscription_change", args=[one.pk]) for one in (late, shop)]
    assert ["/backfill" in admin.get(page).content.decode() for page in pages] == [True, False]
    assert "Stored messages, before any filter: 1." in admin.get(address).content.decode()
    assert not Replay.objects.exists()
    begun = admin.post(address, follow=True).content.decode()
    replay = Replay.objects.get()
    assert (replay.kind, replay.state, replay.created_by) == ("BACKFILL", "COUNTING", "admin")
    assert f"/{replay.pk}/cancel" in begun
    again = admin.post(address, follow=True).content.decode()
    assert "It is being backfilled." in again
    admin.post(reverse("admin:delivery_replay_cancel", args=[replay.pk]), CONFIRMED)
    late.refresh_from_db()
    assert (late.status, late.paused_by) == (Status.INACTIVE, "")
