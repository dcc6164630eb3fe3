"""How callbacks end: replies that nobody takes in time, and what is left of those that have ended."""

from datetime import timedelta

import pytest
from django.db.models import F
from django.db.models.functions import Now
from django.test import Client

from delivery.maintenance import expiry, maintainer
from delivery.maintenance.expiry import expire_replies, forget_callbacks, remove_ended_lines
from delivery.models import OPEN_SHELF, Callback, Delivery, Lane, Line, PageRead
from delivery.statuses import DeliveryStatus
from subscriptions.models import EventType, Publisher
from tests.calling_back import address_of, called_back, job_type, post
from tests.publishing import problem

DAY = timedelta(days=1)
KEPT_DAYS = 14


@pytest.fixture
def job(publisher: Publisher) -> EventType:
    return job_type()


@pytest.fixture
def callback(client: Client, job: EventType) -> Callback:
    return called_back(client)


def grow_older(days: int) -> None:
    """Let so many days pass for every callback."""
    Callback.objects.update(created_at=F("created_at") - days * DAY, expires_at=F("expires_at") - days * DAY)


def reply_line() -> Line:
    return Line.objects.get(lane=Lane.CALLBACK)


@pytest.mark.behaviour("6.8")
def test_a_reply_that_nobody_takes_in_fourteen_days_expires(callback: Callback) -> None:
    grow_older(13)
    post(callback)
    grow_older(13)
    assert expire_replies() == 0, "it has fourteen days of its own"
    Delivery.objects.filter(subscription=None).update(reason="answered 503")
    grow_older(1)
    assert expire_replies() == 1
    ended = Delivery.objects.get(subscription=None)
    assert (ended.status, ended.reason) == (DeliveryStatus.EXPIRED, "not taken in time: answered 503")
    assert ended.finished_at is not None
    assert ended.closed_on < OPEN_SHELF
    assert (reply_line().head_id, reply_line().due_at, reply_line().held_since) == (None, None, None)
    assert expire_replies() == 0


@pytest.mark.behaviour("6.8", "6.10")
def test_a_callback_that_nobody_replies_to_ends_after_fourteen_days(callback: Callback) -> None:
    grow_older(14)
    assert expire_replies() == 0
    assert problem(post(callback)) == (410, "callback_expired")


def test_a_reply_under_way_does_not_expire(callback: Callback) -> None:
    post(callback)
    grow_older(14)
    Delivery.objects.filter(subscription=None).update(status=DeliveryStatus.IN_FLIGHT)
    assert expire_replies() == 0


def test_replies_under_way_do_not_keep_others_from_expiring(
    client: Client, callback: Callback, monkeypatch: pytest.MonkeyPatch
) -> None:
    for one in (callback, called_back(client)):
        assert post(one).status_code == 201
    grow_older(14)
    oldest = Line.objects.filter(lane=Lane.CALLBACK).earliest("id")
    Line.objects.filter(pk=oldest.pk).update(due_at=Now() - DAY)
    Delivery.objects.filter(line=oldest).update(status=DeliveryStatus.IN_FLIGHT)
    monkeypatch.setattr(expiry, "EXPIRE", expiry.EXPIRE.replace(f"LIMIT {expiry.SLICE}", "LIMIT 1"))
    assert expire_replies() == 1


def test_the_line_of_a_reply_goes_once_it_has_ended(callback: Callback) -> None:
    post(callback)
    assert remove_ended_lines() == 0
    PageRead.objects.create(line=reply_line(), delivery_ids=[1])
    Line.objects.filter(lane=Lane.CALLBACK).update(head_id=None, lease_until=Now())
    assert remove_ended_lines() == 0, "its driver has not let it go"
    Line.objects.filter(lane=Lane.CALLBACK).update(lease_until=None)
    others = Line.objects.exclude(lane=Lane.CALLBACK).count()
    assert remove_ended_lines() == 1
    assert (Line.objects.count(), PageRead.objects.count()) == (others, 0)


def test_callbacks_are_forgotten_once_they_ended_long_ago(callback: Callback) -> None:
    grow_older(14 + KEPT_DAYS - 1)
    assert forget_callbacks(keep_days=KEPT_DAYS) == 0
    grow_older(1)
    assert forget_callbacks(keep_days=KEPT_DAYS) == 1
    assert not Callback.objects.exists()


def test_a_callback_whose_reply_is_not_delivered_yet_is_not_forgotten(callback: Callback) -> None:
    post(callback)
    grow_older(100)
    assert forget_callbacks(keep_days=KEPT_DAYS) == 0


@pytest.mark.parametrize("replied", [False, True])
def test_a_chain_is_forgotten_slice_by_slice(
    storage: None, client: Client, callback: Callback, monkeypatch: pytest.MonkeyPatch, replied: bool
) -> None:
    chain = [callback]
    for _ in range(3):
        chain.append(called_back(client, address_of(chain[-1])))
    if replied:
        post(chain[-1])
    grow_older(100)
    expire_replies()
    remove_ended_lines()
    monkeypatch.setattr(expiry, "FORGET", expiry.FORGET.replace(f"LIMIT {expiry.SLICE}", "LIMIT 1"))
    assert forget_callbacks(keep_days=KEPT_DAYS) == 4


def test_maintenance_does_all_of_it(storage: None, callback: Callback) -> None:
    post(callback)
    grow_older(100)
    maintainer.maintain(keep_days=KEPT_DAYS)
    assert Delivery.objects.get(subscription=None).status == DeliveryStatus.EXPIRED
    assert not Callback.objects.exists()
    assert not Line.objects.filter(lane=Lane.CALLBACK).exists()
