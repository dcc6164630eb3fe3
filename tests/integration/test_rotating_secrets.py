"""Rotating signing secrets: for a while both sign, so that a receiver may know either, as others verify it."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db.models.functions import Now
from django.test import Client
from standardwebhooks import Webhook, WebhookVerificationError

from delivery.maintenance.maintainer import maintain
from subscriptions.models import EventKind, FormerSecret, Publisher, Subscription
from tests import factories
from tests.asking import PATH
from tests.clients import Answer, client_of
from tests.driving import Worker, publish_numbered, wait_until_done
from tests.publishing import JSON, problem, publish
from tests.receiver import Received, Receiver, wait_until

DAY = timedelta(days=1)


@pytest.fixture
def wanted(receiver: Receiver, storage: None) -> Subscription:
    return factories.subscription(endpoint=receiver.url("/a"))


def rotated(one: Subscription, client: Client | None = None, **asked: Any) -> Answer:
    return (client or client_of()).post(f"/api/v1/subscriptions/{one.pk}/rotate-secret", asked, content_type=JSON)


def new_secret(one: Subscription, **asked: Any) -> str:
    return str(rotated(one, **asked).json()["signing_secret"])


def sent_now(receiver: Receiver, one: Subscription) -> Received:
    """Return the request with a message that is published now."""
    before = len(receiver.log)
    publish_numbered(one.event_type, 1)
    wait_until_done()
    (sent,) = receiver.log[before:]
    return sent


def verifies(sent: Received, secret: str) -> bool:
    try:
        Webhook(secret).verify(sent.body, dict(sent.headers), json_parse=False)
    except WebhookVerificationError:
        return False
    return True


def known_by(sent: Received, *secrets: str) -> list[bool]:
    return [verifies(sent, secret) for secret in secrets]


def signatures_of(sent: Received) -> int:
    return len(sent.headers["webhook-signature"].split(" "))


def test_who_knows_either_secret_verifies_while_both_sign(
    receiver: Receiver, worker: Worker, wanted: Subscription
) -> None:
    former = wanted.signing_secret
    assert known_by(sent_now(receiver, wanted), former) == [True]
    secret = new_secret(wanted)
    during = sent_now(receiver, wanted)
    assert (known_by(during, former, secret), signatures_of(during)) == ([True, True], 2)
    assert not verifies(during, factories.subscription().signing_secret)


@pytest.mark.behaviour("4.9")
def test_without_an_overlap_only_the_new_one_signs_at_once(
    receiver: Receiver, worker: Worker, wanted: Subscription
) -> None:
    first = wanted.signing_secret
    second = new_secret(wanted)
    third = new_secret(wanted, overlap_seconds=0)
    after = sent_now(receiver, wanted)
    assert (known_by(after, first, second, third), signatures_of(after)) == ([False, False, True], 1)
    assert not FormerSecret.objects.exists()


def test_the_former_one_stops_signing_in_the_very_second_that_was_said(
    receiver: Receiver, worker: Worker, wanted: Subscription
) -> None:
    former = wanted.signing_secret
    answered = rotated(wanted, overlap_seconds=1).json()
    ends_at = datetime.fromisoformat(answered["overlap_ends_at"]).timestamp()
    sent_now(receiver, wanted)
    wait_until(lambda: publish_numbered(wanted.event_type, 1) and signatures_of(receiver.log[-1]) == 1)
    wait_until_done()
    times = [int(sent.headers["webhook-timestamp"]) for sent in receiver.log]
    assert min(times) < ends_at <= max(times)
    assert [verifies(sent, former) for sent in receiver.log] == [at < ends_at for at in times]
    assert all(verifies(sent, answered["signing_secret"]) for sent in receiver.log)


def test_whoever_has_not_heard_of_the_new_one_rotates_again_and_breaks_nothing(
    receiver: Receiver, worker: Worker, wanted: Subscription
) -> None:
    known = wanted.signing_secret
    lost = new_secret(wanted)
    secret = new_secret(wanted)
    assert known_by(sent_now(receiver, wanted), known, lost, secret) == [True, True, True]


def test_an_overlap_can_be_ended_early(receiver: Receiver, worker: Worker, wanted: Subscription) -> None:
    former, secret = wanted.signing_secret, new_secret(wanted)
    assert known_by(sent_now(receiver, wanted), former, secret) == [True, True]
    ended = client_of().post(f"/api/v1/subscriptions/{wanted.pk}/end-overlap", content_type=JSON)
    assert (ended.status_code, ended.json()["overlap_ends_at"]) == (200, None)
    assert known_by(sent_now(receiver, wanted), former, secret) == [False, True]


@pytest.mark.django_db
def test_an_overlap_is_a_day_long_unless_somebody_says_otherwise() -> None:
    made = factories.subscription()
    periods: list[tuple[dict[str, Any], timedelta]] = [({}, DAY), ({"overlap_seconds": 604_800}, 7 * DAY)]
    for asked, length in periods:
        ends_at = datetime.fromisoformat(rotated(made, **asked).json()["overlap_ends_at"])
        assert abs(ends_at - datetime.now(UTC) - length) < timedelta(minutes=1)
    shorter = rotated(made, overlap_seconds=60).json()["overlap_ends_at"]
    assert datetime.fromisoformat(shorter) == ends_at, "one of the former signs until then"


@pytest.mark.django_db
@pytest.mark.parametrize("seconds", [-1, 604_801, "60", None, 1.5, True])
def test_other_overlaps_are_refused(seconds: object) -> None:
    made = factories.subscription()
    assert problem(rotated(made, overlap_seconds=seconds))[0] == 400
    assert Subscription.objects.get().signing_secret == made.signing_secret


@pytest.mark.django_db
def test_more_than_three_former_secrets_are_refused_until_the_overlap_is_ended() -> None:
    made = factories.subscription()
    secrets = [new_secret(made) for _ in range(3)]
    assert problem(rotated(made)) == (409, "too_many_secrets")
    assert Subscription.objects.get().signing_secret == secrets[-1]
    assert rotated(made, overlap_seconds=0).status_code == 200
    assert rotated(made).status_code == 200


@pytest.mark.django_db
def test_what_is_over_does_not_count_and_is_forgotten(storage: None) -> None:
    made = factories.subscription()
    for _ in range(3):
        rotated(made)
    FormerSecret.objects.filter(pk__in=FormerSecret.objects.order_by("pk")[:2]).update(signs_until=Now())
    assert rotated(made).status_code == 200
    maintain(keep_days=14)
    assert FormerSecret.objects.count() == 2


@pytest.mark.django_db
def test_a_rotation_of_what_has_changed_meanwhile_is_refused_and_leaves_no_former_secret() -> None:
    made = factories.subscription()
    address = f"/api/v1/subscriptions/{made.pk}/rotate-secret"
    refused = client_of().post(address, content_type=JSON, headers={"If-Match": '"9"'})
    assert (problem(refused), FormerSecret.objects.count()) == ((412, "version_mismatch"), 0)


@pytest.mark.django_db
def test_no_answer_but_that_to_the_rotation_has_a_secret() -> None:
    made = factories.subscription()
    client = client_of()
    shown = rotated(made, client).json()["signing_secret"]
    for address in (f"/api/v1/subscriptions/{made.pk}", "/api/v1/subscriptions"):
        text = client.get(address).content.decode()
        assert "whsec_" not in text
        assert "overlap_ends_at" in text
    assert shown == Subscription.objects.get().signing_secret


def test_a_call_is_signed_by_both_too(calls: None, publisher: Publisher, receiver: Receiver) -> None:
    event_type = factories.event_type("Test.Call", EventKind.SYNC)
    asked = factories.subscription(event_type=event_type, endpoint=receiver.url(PATH))
    former = asked.signing_secret
    secret = new_secret(asked)
    assert publish(client_of(publisher), event="Test.Call").status_code == 200
    assert known_by(receiver.log[0], former, secret) == [True, True]
