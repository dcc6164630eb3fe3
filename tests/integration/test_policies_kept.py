"""Retry policies: what comes installed, what follows them, and what the database makes sure of."""

from typing import Any

import pytest
from django.apps import apps
from django.db import IntegrityError, connection, models, transaction
from django.db.models import ProtectedError
from django.utils import timezone

from subscriptions.models import (
    EventType,
    PausedBy,
    Processing,
    RetryPolicy,
    Status,
    StatusChange,
    Subscriber,
    Subscription,
)
from subscriptions.presets import install
from subscriptions.retry_policies import PRESETS, Action, OnExhausted
from tests import factories

pytestmark = pytest.mark.django_db

PAUSED = {"paused_since": timezone.now(), "paused_by": PausedBy.HAND}


def versions(*records: models.Model) -> list[int]:
    for record in records:
        record.refresh_from_db(fields=["version"])
    return [record.version for record in records]  # type: ignore[attr-defined]


def refused(change: Any) -> str:
    """Return which rule of the database a change breaks."""
    with pytest.raises(IntegrityError) as error, transaction.atomic():
        change()
    return str(error.value)


@pytest.mark.behaviour("5.1")
def test_four_policies_come_installed() -> None:
    installed = RetryPolicy.objects.filter(is_preset=True)
    assert {policy.name: policy.terms for policy in installed} == PRESETS


@pytest.mark.behaviour("5.7")
def test_the_brokers_own_event_types_come_installed() -> None:
    own = EventType.objects.exclude(pk__in=EventType.objects.configured()).values_list("name", "kind")
    assert {*own} == {
        ("Broker.Delivery.Rejected", "TOPIC"),
        ("Broker.Delivery.Failed", "TOPIC"),
        ("Broker.Line.Paused", "TOPIC"),
        ("Broker.Line.Resumed", "TOPIC"),
    }


def test_installing_again_adds_what_is_missing_and_leaves_the_rest() -> None:
    EventType.objects.get(name="Broker.Line.Paused").delete()
    EventType.objects.filter(name="Broker.Line.Resumed").update(description="ours")
    install(apps)
    paused, resumed = (EventType.objects.get(name=f"Broker.Line.{what}") for what in ("Paused", "Resumed"))
    assert (paused.version, resumed.description, resumed.version) == (1, "ours", 2)
    assert RetryPolicy.objects.count() == len(PRESETS)


@pytest.mark.behaviour("5.1")
@pytest.mark.parametrize(
    "change", [{"initial_delay_seconds": 2.0}, {"description": "x"}, {"is_preset": False}, {"name": "Mine"}]
)
@pytest.mark.parametrize("name", PRESETS)
def test_the_database_changes_no_preset(name: str, change: dict[str, Any]) -> None:
    assert "fixed after creation" in refused(lambda: RetryPolicy.objects.filter(name=name).update(**change))
    policy = RetryPolicy.objects.get(name=name)
    assert (policy.terms, policy.is_preset, policy.version) == (PRESETS[name], True, 1)


def test_the_database_deletes_no_preset_and_makes_none_of_another() -> None:
    assert "fixed after creation" in refused(lambda: RetryPolicy.objects.get(name="Workfront").delete())
    mine = RetryPolicy.objects.filter(pk=factories.retry_policy().pk)
    assert "fixed after creation" in refused(lambda: mine.update(is_preset=True))
    assert mine.delete() == (1, {"subscriptions.RetryPolicy": 1})


@pytest.mark.behaviour("4.9")
def test_a_change_of_a_policy_raises_the_versions_of_its_subscriptions_and_of_no_others() -> None:
    policy, other = factories.retry_policy(), factories.retry_policy()
    following = [factories.subscription(retry_policy=policy) for _ in range(2)]
    rest = [factories.subscription(retry_policy=other), factories.subscription()]
    RetryPolicy.objects.filter(pk=policy.pk).update(max_retries=3, on_exhausted=OnExhausted.FAIL)
    assert versions(policy, *following) == [2, 2, 2]
    assert versions(other, *rest) == [1, 1, 1]


def test_a_policy_that_is_followed_stays() -> None:
    policy = factories.retry_policy()
    made = factories.subscription(retry_policy=policy)
    with pytest.raises(ProtectedError):
        policy.delete()
    made.delete()
    policy.delete()


@pytest.mark.parametrize(
    ("terms", "rule"),
    [
        ({"name": "two words"}, "retry_policy_name"),
        ({"on_no_answer": "PANIC"}, "retry_policy_actions"),
        ({"on_exhausted": "NEVER", "max_retries": 3}, "retry_policy_end"),
        ({"on_exhausted": "FAIL", "max_retries": None}, "retry_policy_end"),
        ({"on_exhausted": "SHRUG", "max_retries": 3}, "retry_policy_end"),
        ({"on_exhausted": "FAIL", "max_retries": 1_001}, "retry_policy_end"),
        ({"initial_delay_seconds": 0.0}, "retry_policy_numbers"),
        ({"max_delay_seconds": float("nan")}, "retry_policy_numbers"),
        ({"factor": float("inf")}, "retry_policy_numbers"),
        ({"jitter": 0.6}, "retry_policy_numbers"),
        ({"probe_seconds": 0.5}, "retry_policy_numbers"),
    ],
)
def test_the_database_stores_no_policy_that_cannot_be_followed(terms: dict[str, Any], rule: str) -> None:
    assert rule in refused(lambda: factories.retry_policy(**terms))


def test_a_policy_of_ones_own_says_what_teamforge_says_where_nothing_else_is_said() -> None:
    assert RetryPolicy.objects.get(pk=factories.retry_policy().pk).terms == PRESETS["TeamForge"]
    mine = factories.retry_policy(on_server_error=Action.END, schedule=[1, 2.5])
    assert RetryPolicy.objects.get(pk=mine.pk).terms.schedule == (1.0, 2.5)


@pytest.mark.behaviour("1.6")
@pytest.mark.parametrize(
    ("status", "pause", "is_sending"),
    [
        (Status.ACTIVE, {}, True),
        (Status.INACTIVE, {}, False),
        (Status.ACTIVE, PAUSED, False),
        (Status.INACTIVE, PAUSED, False),
        (Status.ACTIVE, PAUSED | {"half_open": True}, True),
        (Status.INACTIVE, PAUSED | {"half_open": True}, False),
    ],
)
def test_what_is_active_is_sending_unless_paused_and_not_on_trial(
    status: Status, pause: dict[str, Any], is_sending: bool
) -> None:
    made = factories.subscription()
    Subscription.objects.update(status=status, **pause)
    made.refresh_from_db()
    assert (made.is_sending, made.version) == (is_sending, 2)


@pytest.mark.behaviour("1.6")
def test_the_beginning_and_the_end_of_a_pause_are_noted_and_a_trial_is_not() -> None:
    made = factories.subscription()
    for change in (PAUSED, {"half_open": True}, {"paused_reason": "why"}):
        Subscription.objects.update(**change)
    assert [*StatusChange.objects.values_list("subscription_id", "status")] == [(made.pk, Status.ACTIVE)]
    over: dict[str, Any] = {"paused_since": None, "paused_by": "", "paused_reason": "", "half_open": False}
    Subscription.objects.update(**over)
    assert StatusChange.objects.filter(subscription_id=made.pk, subscriber_id=made.subscriber_id).count() == 2


@pytest.mark.behaviour("4.13")
def test_whether_deliveries_are_sent_in_order_is_noted_when_it_changes() -> None:
    made = factories.subscription()
    changes: list[dict[str, Any]] = [
        {"processing": Processing.CONCURRENT},
        {"concurrency": 3},
        {"processing": Processing.SERIAL, "concurrency": 1},
    ]
    for change in changes:
        Subscriber.objects.update(**change)
    noted = (made.subscriber_id, None, Status.ACTIVE)
    assert [*StatusChange.objects.values_list("subscriber_id", "subscription_id", "status")] == [noted, noted]


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        ({"paused_since": timezone.now()}, "subscription_pause"),
        ({"paused_by": PausedBy.POLICY}, "subscription_pause"),
        ({"half_open": True}, "subscription_pause"),
        ({"probe_due_at": timezone.now()}, "subscription_pause"),
        (PAUSED | {"paused_by": "CHANCE"}, "subscription_pause"),
        ({"rate_limit": 0.0}, "subscription_rate_limit"),
        ({"rate_limit": 10_001.0}, "subscription_rate_limit"),
        ({"rate_limit": float("nan")}, "subscription_rate_limit"),
        ({"output": "XML"}, "subscription_output"),
    ],
)
def test_the_database_refuses_half_a_pause_and_what_cannot_be_sent_so(change: dict[str, Any], rule: str) -> None:
    made = factories.subscription()
    assert rule in refused(lambda: Subscription.objects.update(**change))
    assert versions(made) == [1]


@pytest.mark.behaviour("4.13")
@pytest.mark.parametrize(
    ("change", "rule"),
    [
        ({"processing": "RANDOM"}, "subscriber_processing"),
        ({"concurrency": 0}, "subscriber_concurrency"),
        ({"concurrency": 257}, "subscriber_concurrency"),
    ],
)
def test_a_subscriber_takes_one_to_256_at_a_time(change: dict[str, Any], rule: str) -> None:
    made = factories.subscriber()
    assert (made.processing, made.concurrency) == (Processing.SERIAL, 1)
    assert rule in refused(lambda: type(made).objects.update(**change))


def test_rows_that_say_nothing_of_all_this_are_as_they_always_were() -> None:
    made = factories.subscription()
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO subscriptions_subscription (subscriber_id, event_type_id, event_pattern, endpoint, headers,"
            " header_filter_string, filter, filter_term, script, signing_secret, position, status)"
            " SELECT subscriber_id, event_type_id, event_pattern, endpoint, headers, header_filter_string, filter,"
            " filter_term, script, signing_secret, position, status FROM subscriptions_subscription"
        )
    names = ("retry_policy", "rate_limit", "output", "monitor_url", "paused_since", "paused_by", "is_sending")
    assert Subscription.objects.exclude(pk=made.pk).values_list(*names).get() == (
        *(None, None, "AS_PUBLISHED", "", None, "", True),
    )
