"""Retry policies in the admin."""

import pytest
from django.test import Client

from subscriptions.models import RetryPolicy
from subscriptions.retry_policies import PRESETS
from tests import factories

pytestmark = pytest.mark.django_db

ROOT = "/admin/subscriptions/retrypolicy"
TERMS = {
    **{f"on_{what}": "HOLD" for what in ("redirect", "throttled", "client_error")},
    **{f"on_{what}": "RETRY_LANE" for what in ("unavailable", "server_error", "no_answer")},
    "initial_delay_seconds": "2",
    "factor": "1",
    "max_delay_seconds": "60",
    "jitter": "0",
    "schedule": "1, 2.5",
    "max_retries": "2",
    "on_exhausted": "FAIL",
    "probe_seconds": "60",
}


@pytest.mark.behaviour("5.1")
def test_one_is_made_and_changed(admin: Client) -> None:
    admin.post(f"{ROOT}/add/", {"name": "mine", **TERMS})
    made = RetryPolicy.objects.get(is_preset=False)
    assert (made.name, made.schedule, made.max_retries, made.on_no_answer) == ("mine", [1, 2.5], 2, "RETRY_LANE")
    form = {"name": "mine", **TERMS, "initial-schedule": "1.0,2.5", "schedule": ""}
    admin.post(f"{ROOT}/{made.pk}/change/", form)
    made.refresh_from_db()
    assert (made.schedule, made.version) == ([], 2)


def test_terms_that_do_not_go_together_are_said_at_their_field(admin: Client) -> None:
    answer = admin.post(f"{ROOT}/add/", {"name": "mine", **TERMS, "max_retries": ""})
    assert answer.context["adminform"].form.errors.keys() == {"max_retries"}
    assert RetryPolicy.objects.count() == len(PRESETS)


@pytest.mark.behaviour("5.1")
def test_presets_can_be_looked_at_only(admin: Client) -> None:
    preset = RetryPolicy.objects.get(name="Workfront")
    assert b"retry policies" in admin.get(f"{ROOT}/").content
    assert b'name="initial_delay_seconds"' not in admin.get(f"{ROOT}/{preset.pk}/change/").content
    assert admin.post(f"{ROOT}/{preset.pk}/change/", {"name": "mine", **TERMS}).status_code == 403
    assert admin.post(f"{ROOT}/{preset.pk}/delete/", {"post": "yes"}).status_code == 403
    assert RetryPolicy.objects.get(pk=preset.pk).version == 1


def test_a_policy_that_is_followed_is_not_deleted(admin: Client) -> None:
    policy = factories.retry_policy()
    factories.subscription(retry_policy=policy)
    admin.post(f"{ROOT}/{policy.pk}/delete/", {"post": "yes"})
    assert RetryPolicy.objects.filter(pk=policy.pk).exists()
