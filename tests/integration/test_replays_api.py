"""Replays over the API: what is asked for, counted, watched and cancelled, and by whom."""

from typing import Any

import pytest
from django.test import Client

from delivery.models import Delivery, Replay
from delivery.replay.replay_job import go_on
from subscriptions.models import Subscription
from tests import factories
from tests.clients import client_of, client_with
from tests.driving import publish_numbered, wait_until_done, working
from tests.publishing import EVENT, JSON, problem
from tests.receiver import Receiver, answer

pytestmark = pytest.mark.behaviour("5.8")

REPLAYS = "/api/v1/replays"


@pytest.fixture
def shop(storage: None, receiver: Receiver) -> Subscription:
    """Return a subscription of which three deliveries were rejected."""
    shop = factories.subscription(factories.subscriber("shop"), factories.event_type(EVENT), receiver.url("/hook"))
    receiver.on("/hook", answer(404))
    publish_numbered(shop.event_type, 3)
    with working():
        wait_until_done()
    return shop


def ask(client: Client, **asked: Any) -> Any:
    return client.post(REPLAYS, asked, content_type=JSON)


def test_a_dry_run_counts_and_makes_nothing(shop: Subscription) -> None:
    for asked in ({"subscription": shop.pk}, {"subscriber": "shop"}):
        counted = ask(client_of(), **asked, dry_run=True)
        assert (counted.status_code, counted.json()) == (
            200,
            {"count": 3, "by_status": {"REJECTED": 3}, "complete": True},
        )
    assert not Replay.objects.exists()


def test_a_replay_is_accepted_watched_and_listed(shop: Subscription) -> None:
    client = client_of(shop.subscriber)
    asked = {
        "event_type": EVENT,
        "statuses": ["REJECTED"],
        "from": "2026-01-01T00:00:00Z",
        "to": "2100-01-01T00:00:00Z",
    }
    accepted = ask(client, subscription=shop.pk, pace=100_000, **asked)
    assert accepted.status_code == 202
    begun = accepted.json()
    assert (begun["kind"], begun["state"], begun["total"], begun["filed"]) == ("REPLAY", "COUNTING", 0, 0)
    assert begun["selection"] == {
        "subscriber": "shop",
        "subscriptions": [shop.pk],
        "statuses": ["REJECTED"],
        "event_type": EVENT,
        "from": "2026-01-01T00:00:00+00:00",
        "to": "2100-01-01T00:00:00+00:00",
    }
    Replay.objects.update(pace=None)
    while go_on():
        pass
    done = client.get(accepted["Location"]).json()
    assert (done["state"], done["filed"], done["skipped"]) == ("DONE", 3, 0)
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
        {"subscription": 10**17},
        {"subscription": "1"},
        {"subscription": "own", "statuses": []},
        {"subscription": "own", "statuses": ["PENDING"]},
        {"subscription": "own", "statuses": ["REDUNDANT"]},
        {"subscription": "own", "from": "2026-01-02T00:00:00Z", "to": "2026-01-02T00:00:00Z"},
        {"subscription": "own", "from": "yesterday"},
        {"subscription": "own", "from": "2026-01-02T00:00:00"},
        {"subscription": "own", "to": "2026-01-02"},
        {"subscription": "own", "pace": 0},
        {"subscription": "own", "event_type": "Unknown"},
        {"subscription": "own", "paces": 1},
    ],
)
def test_what_makes_no_selection_is_refused(shop: Subscription, asked: dict[str, Any]) -> None:
    factories.subscriber("idle")
    own = {name: shop.pk if value == "own" else value for name, value in asked.items()}
    assert problem(ask(client_of(), **own)) == (400, "invalid")
    assert not Replay.objects.exists()


def test_cancelling_twice_is_as_good_as_once_and_of_what_is_done_refused(shop: Subscription) -> None:
    client = client_of(shop.subscriber)
    address = ask(client, subscription=shop.pk)["Location"]
    for _ in range(2):
        cancelled = client.post(f"{address}/cancel", content_type=JSON)
        assert (cancelled.status_code, cancelled.json()["state"]) == (200, "CANCELLED")
    done = ask(client, subscription=shop.pk)["Location"]
    while go_on():
        pass
    assert problem(client.post(f"{done}/cancel", content_type=JSON)) == (409, "finished")
    assert client.post(f"{REPLAYS}/{10**17}/cancel", content_type=JSON).status_code == 404


@pytest.mark.behaviour("1.2")
def test_a_subscriber_sees_and_makes_replays_of_its_own_only(shop: Subscription) -> None:
    address = ask(client_of(), subscription=shop.pk)["Location"]
    stranger = client_of(factories.subscription().subscriber)
    assert stranger.get(address).status_code == stranger.post(f"{address}/cancel", content_type=JSON).status_code == 404
    assert stranger.get(REPLAYS).json()["items"] == []
    for asked in ({"subscription": shop.pk}, {"subscriber": "shop"}):
        assert problem(ask(stranger, **asked)) == (400, "invalid")
    publisher = client_of(factories.publisher())
    assert (publisher.get(REPLAYS).status_code, ask(publisher, subscription=shop.pk).status_code) == (403, 403)
    assert Client().get(REPLAYS).status_code == 401
    assert client_of(shop.subscriber).get(address).status_code == 200
    assert Replay.objects.get().state == "COUNTING"


def test_a_selection_is_told_by_names_which_a_list_reads_at_once(
    shop: Subscription, django_assert_max_num_queries: Any
) -> None:
    client = client_of()
    for more in ({}, *[{"event_type": EVENT}] * 3):
        ask(client, subscriber="shop", **more)
    with django_assert_max_num_queries(6):
        told = [one["selection"] for one in client.get(REPLAYS).json()["items"]]
    named = [(one["subscriber"], one["event_type"], one["subscriptions"]) for one in told]
    assert named == [*[("shop", EVENT, [shop.pk])] * 3, ("shop", None, [shop.pk])]


@pytest.mark.behaviour("1.2")
def test_only_management_is_told_who_asked_for_it(shop: Subscription) -> None:
    management, own = client_of(), client_with(factories.api_key(shop.subscriber, label="own")[1])
    made = [ask(client, subscription=shop.pk).json() for client in (management, own)]
    assert made[1]["created_by"] is None
    cancelled = own.post(f"{REPLAYS}/{made[0]['id']}/cancel", content_type=JSON).json()
    listed = [one["created_by"] for one in own.get(REPLAYS).json()["items"]]
    assert [cancelled["created_by"], *listed] == [None] * 3
    told = {one["id"]: one["created_by"] for one in management.get(REPLAYS).json()["items"]}
    assert "own" in told[made[1]["id"]]
    assert told[made[0]["id"]]
