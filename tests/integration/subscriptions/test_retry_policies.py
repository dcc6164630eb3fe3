"""Retry policies: over the API, in the admin, installed, and guarded by the database."""

from typing import Any

import pytest
from django.apps import apps
from django.db import IntegrityError, models, transaction
from django.test import Client
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
from tests.support import factories
from tests.support.admin import form_shown, save_form
from tests.support.api import Answer, client_of, invalid_fields, problem_of
from tests.support.html_form import Form

pytestmark = pytest.mark.django_db

RETRY_POLICIES = "/api/v1/retry-policies"

PAUSED = {"paused_since": timezone.now(), "paused_by": PausedBy.HAND}

ADMIN_RETRY_POLICIES = "/admin/subscriptions/retrypolicy"


@pytest.mark.behaviour("5.1")
def test_every_key_reads_the_presets() -> None:
    for owner in (None, factories.publisher(), factories.subscriber()):
        assert {one["name"] for one in client_of(owner).get(RETRY_POLICIES).json()["items"]} == PRESETS.keys()
    patient = client_of().get(f"{RETRY_POLICIES}/Standard-Webhooks").json()
    assert (patient["max_retries"], patient["on_exhausted"], patient["is_preset"]) == (8, "FAIL", True)
    assert patient["schedule"] == [300, 1800, 7200, 18000, 36000, 50400, 72000, 86400]


@pytest.mark.behaviour("5.1")
def test_management_makes_changes_and_deletes_one_by_version() -> None:
    terms = {"on_server_error": "RETRY_LANE", "schedule": [1, 2.5], "max_retries": 2, "on_exhausted": "SUSPEND"}
    made = client_of().post(RETRY_POLICIES, {"name": "mine", **terms})
    assert (made.status_code, made["Location"], made["ETag"]) == (201, f"{RETRY_POLICIES}/mine", '"1"')
    assert {**made.json(), **terms} == made.json()
    changed = client_of().patch(made["Location"], {"jitter": 0.5}, headers={"If-Match": '"1"'})
    assert (changed.status_code, changed.json()["jitter"], changed["ETag"]) == (200, 0.5, '"2"')
    stale = client_of().delete(made["Location"], headers={"If-Match": '"1"'})
    assert (stale.status_code, client_of().delete(made["Location"]).status_code) == (412, 204)


def test_other_keys_change_nothing() -> None:
    address = f"{RETRY_POLICIES}/{factories.retry_policy().name}"
    for client in (client_of(factories.publisher()), client_of(factories.subscriber())):
        assert client.post(RETRY_POLICIES, {"name": "mine"}).status_code == 403
        assert client.patch(address, {"jitter": 0}).status_code == 403
        assert client.delete(address).status_code == 403


@pytest.mark.behaviour("5.1")
@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_stays_as_it_is(name: str) -> None:
    address = f"{RETRY_POLICIES}/{name}"
    answers = [client_of().patch(address, {"jitter": 0.3}), client_of().delete(address)]
    assert [(answer.status_code, answer.json()["code"]) for answer in answers] == [(409, "preset")] * 2
    assert RetryPolicy.objects.get(name=name).version == 1


def test_a_name_is_given_once_and_a_policy_that_is_followed_stays() -> None:
    policy = factories.retry_policy("mine")
    follower = factories.subscription(retry_policy=policy)
    taken = client_of().post(RETRY_POLICIES, {"name": "mine"})
    used = client_of().delete(f"{RETRY_POLICIES}/mine")
    assert [problem_of(answer) for answer in (taken, used)] == [(409, "name_taken"), (409, "still_in_use")]
    assert f"choose another policy for subscription {follower.pk} ({follower}) first" in used.json()["detail"]


@pytest.mark.parametrize(
    ("body", "at"),
    [
        ({}, {"name"}),
        ({"name": "two words"}, {"name"}),
        ({"name": "a", "is_preset": True}, {"is_preset"}),
        ({"name": "a", "on_redirect": "IGNORE"}, {"on_redirect"}),
        ({"name": "a", "schedule": ["1"]}, {"schedule/0"}),
        ({"name": "a", "on_exhausted": "FAIL"}, {"max_retries"}),
        ({"name": "a", "max_retries": 1}, {"on_exhausted"}),
        ({"name": "a", "initial_delay_seconds": 0, "factor": 0}, {"initial_delay_seconds", "factor"}),
    ],
)
def test_an_invalid_policy_is_refused_at_its_field(body: dict[str, Any], at: set[str]) -> None:
    assert invalid_fields(client_of().post(RETRY_POLICIES, body)) == sorted(at)


def test_a_change_after_which_the_terms_do_not_go_together_is_refused() -> None:
    factories.retry_policy("mine", max_retries=2, on_exhausted="FAIL")
    address = f"{RETRY_POLICIES}/mine"
    assert invalid_fields(client_of().patch(address, {"on_exhausted": "NEVER"})) == ["on_exhausted"]
    both = {"on_exhausted": "NEVER", "max_retries": None}
    assert client_of().patch(address, both).json()["max_retries"] is None


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


def test_a_new_policy_has_the_terms_of_teamforge_by_default() -> None:
    assert RetryPolicy.objects.get(pk=factories.retry_policy().pk).terms == PRESETS["TeamForge"]
    mine = factories.retry_policy(on_server_error=Action.END, schedule=[1, 2.5])
    assert RetryPolicy.objects.get(pk=mine.pk).terms.schedule == (1.0, 2.5)


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
    serial = {"processing": Processing.SERIAL, "concurrency": 1}
    changes: list[dict[str, Any]] = [{"processing": Processing.CONCURRENT}, {"concurrency": 3}, serial]
    for change in changes:
        Subscriber.objects.update(**change)
    noted = (made.subscriber_id, None, Status.ACTIVE)
    columns = ("subscriber_id", "subscription_id", "status", "processing_before")
    assert [*StatusChange.objects.order_by("id").values_list(*columns)] == [
        (*noted, Processing.SERIAL),
        (*noted, Processing.CONCURRENT),
    ]


TERMS = {"schedule": "1, 2.5", "max_retries": "2", "on_exhausted": "FAIL", "on_no_answer": "RETRY_LANE"}


def added(admin: Client, **fields: str) -> Answer:
    address = f"{ADMIN_RETRY_POLICIES}/add/"
    return admin.post(address, {**Form(admin.get(address).text).fields, "name": "mine", **TERMS, **fields})


@pytest.mark.behaviour("5.1")
def test_a_policy_is_created_and_changed(admin: Client) -> None:
    added(admin)
    made = RetryPolicy.objects.get(is_preset=False)
    assert (made.name, made.schedule, made.max_retries, made.on_no_answer) == ("mine", [1, 2.5], 2, "RETRY_LANE")
    save_form(admin, made, form_shown(admin, made) | {"schedule": ""})
    made.refresh_from_db()
    assert (made.schedule, made.version) == ([], 2)


def test_contradicting_terms_are_reported_at_their_field(admin: Client) -> None:
    assert added(admin, max_retries="").context["adminform"].form.errors.keys() == {"max_retries"}
    assert RetryPolicy.objects.count() == len(PRESETS)


@pytest.mark.behaviour("5.1")
def test_presets_can_be_looked_at_only(admin: Client) -> None:
    preset = RetryPolicy.objects.get(name="Workfront")
    assert b"retry policies" in admin.get(f"{ADMIN_RETRY_POLICIES}/").content
    assert b'name="initial_delay_seconds"' not in admin.get(f"{ADMIN_RETRY_POLICIES}/{preset.pk}/change/").content
    assert admin.post(f"{ADMIN_RETRY_POLICIES}/{preset.pk}/change/", {"name": "mine", **TERMS}).status_code == 403
    assert admin.post(f"{ADMIN_RETRY_POLICIES}/{preset.pk}/delete/", {"post": "yes"}).status_code == 403
    assert RetryPolicy.objects.get(pk=preset.pk).version == 1


def test_a_policy_that_is_followed_is_not_deleted(admin: Client) -> None:
    policy = factories.retry_policy()
    factories.subscription(retry_policy=policy)
    admin.post(f"{ADMIN_RETRY_POLICIES}/{policy.pk}/delete/", {"post": "yes"})
    assert RetryPolicy.objects.filter(pk=policy.pk).exists()
