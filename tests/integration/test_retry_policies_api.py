"""Retry policies over the API."""

from typing import Any

import pytest

from subscriptions.models import RetryPolicy
from subscriptions.retry_policies import PRESETS
from tests import factories
from tests.clients import Answer, client_of

pytestmark = pytest.mark.django_db

ROOT = "/api/v1/retry-policies"
JSON = "application/json"


def pointers(answer: Answer) -> set[str]:
    assert answer.status_code == 400
    return {error["pointer"] for error in answer.json()["errors"]}


@pytest.mark.behaviour("5.1")
def test_every_key_reads_the_presets() -> None:
    for owner in (None, factories.publisher(), factories.subscriber()):
        assert {one["name"] for one in client_of(owner).get(ROOT).json()["items"]} == PRESETS.keys()
    patient = client_of().get(f"{ROOT}/Standard-Webhooks").json()
    assert (patient["max_retries"], patient["on_exhausted"], patient["is_preset"]) == (8, "FAIL", True)
    assert patient["schedule"] == [300, 1800, 7200, 18000, 36000, 50400, 72000, 86400]


@pytest.mark.behaviour("5.1")
def test_management_makes_changes_and_deletes_one_by_version() -> None:
    terms = {"on_server_error": "RETRY_LANE", "schedule": [1, 2.5], "max_retries": 2, "on_exhausted": "SUSPEND"}
    made = client_of().post(ROOT, {"name": "mine", **terms}, content_type=JSON)
    assert (made.status_code, made["Location"], made["ETag"]) == (201, f"{ROOT}/mine", '"1"')
    assert {**made.json(), **terms} == made.json()
    changed = client_of().patch(made["Location"], {"jitter": 0.5}, content_type=JSON, headers={"If-Match": '"1"'})
    assert (changed.status_code, changed.json()["jitter"], changed["ETag"]) == (200, 0.5, '"2"')
    stale = client_of().delete(made["Location"], headers={"If-Match": '"1"'})
    assert (stale.status_code, client_of().delete(made["Location"]).status_code) == (412, 204)


def test_other_keys_change_nothing() -> None:
    address = f"{ROOT}/{factories.retry_policy().name}"
    for client in (client_of(factories.publisher()), client_of(factories.subscriber())):
        assert client.post(ROOT, {"name": "mine"}, content_type=JSON).status_code == 403
        assert client.patch(address, {"jitter": 0}, content_type=JSON).status_code == 403
        assert client.delete(address).status_code == 403


@pytest.mark.behaviour("5.1")
@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_stays_as_it_is(name: str) -> None:
    address = f"{ROOT}/{name}"
    answers = [client_of().patch(address, {"jitter": 0.3}, content_type=JSON), client_of().delete(address)]
    assert [(answer.status_code, answer.json()["code"]) for answer in answers] == [(409, "preset")] * 2
    assert RetryPolicy.objects.get(name=name).version == 1


def test_a_name_is_given_once_and_a_policy_that_is_followed_stays() -> None:
    policy = factories.retry_policy("mine")
    follower = factories.subscription(retry_policy=policy)
    taken = client_of().post(ROOT, {"name": "mine"}, content_type=JSON)
    used = client_of().delete(f"{ROOT}/mine")
    assert [(one.status_code, one.json()["code"]) for one in (taken, used)] == [
        (409, "name_taken"),
        (409, "still_in_use"),
    ]
    assert f"choose another policy for subscription {follower.pk} ({follower}) first" in used.json()["detail"]


@pytest.mark.parametrize(
    ("body", "at"),
    [
        ({}, {"#/name"}),
        ({"name": "two words"}, {"#/name"}),
        ({"name": "a", "is_preset": True}, {"#/is_preset"}),
        ({"name": "a", "on_redirect": "IGNORE"}, {"#/on_redirect"}),
        ({"name": "a", "jitter": "0.1"}, {"#/jitter"}),
        ({"name": "a", "jitter": True}, {"#/jitter"}),
        ({"name": "a", "factor": [2]}, {"#/factor"}),
        ({"name": "a", "schedule": {}}, {"#/schedule"}),
        ({"name": "a", "schedule": ["1"]}, {"#/schedule/0"}),
        ({"name": "a", "max_retries": 2.0}, {"#/max_retries"}),
        ({"name": "a", "respect_retry_after": 1}, {"#/respect_retry_after"}),
        ({"name": "a", "on_exhausted": "FAIL"}, {"#/max_retries"}),
        ({"name": "a", "max_retries": 1}, {"#/on_exhausted"}),
        ({"name": "a", "initial_delay_seconds": 0, "factor": 0}, {"#/initial_delay_seconds", "#/factor"}),
    ],
)
def test_what_is_no_policy_is_refused_at_its_field(body: dict[str, Any], at: set[str]) -> None:
    assert pointers(client_of().post(ROOT, body, content_type=JSON)) == at


def test_a_change_after_which_the_terms_do_not_go_together_is_refused() -> None:
    factories.retry_policy("mine", max_retries=2, on_exhausted="FAIL")
    address = f"{ROOT}/mine"
    assert pointers(client_of().patch(address, {"on_exhausted": "NEVER"}, content_type=JSON)) == {"#/on_exhausted"}
    both = {"on_exhausted": "NEVER", "max_retries": None}
    assert client_of().patch(address, both, content_type=JSON).json()["max_retries"] is None
