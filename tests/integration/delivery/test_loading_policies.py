"""Each subscription's retry policy, rate and form come with where its deliveries go (contract 1.4, 5.1)."""

import pytest

from delivery.retry import TEAMFORGE_POLICY, RetryPolicy, policy_of
from delivery.webhook.destination import destinations_of
from subscriptions import models
from subscriptions.models import Subscription
from subscriptions.payload_format import PayloadFormat
from subscriptions.retry_policies import PRESETS
from tests.support.factories import retry_policy, subscription

pytestmark = pytest.mark.django_db


def policy_followed(by: Subscription) -> RetryPolicy:
    return destinations_of([by.pk])[by.pk].policy


def test_without_a_policy_it_is_the_default_one() -> None:
    assert policy_followed(subscription()) is TEAMFORGE_POLICY


@pytest.mark.parametrize("name", PRESETS)
def test_a_stored_policy_says_what_it_was_made_to_say(name: str) -> None:
    preset = models.RetryPolicy.objects.get(name=name)
    assert policy_followed(subscription(retry_policy=preset)) is policy_of(PRESETS[name])


def test_a_changed_policy_is_read_anew() -> None:
    policy = retry_policy(initial_delay_seconds=3.0)
    follower = subscription(retry_policy=policy)
    stamp = destinations_of([follower.pk])[follower.pk].stamp
    for initial_delay_seconds in (4.0, 5.0):
        models.RetryPolicy.objects.filter(pk=policy.pk).update(initial_delay_seconds=initial_delay_seconds)
        now = destinations_of([follower.pk])[follower.pk]
        assert now.policy.spacing
        assert now.policy.spacing.first == initial_delay_seconds
        assert now.stamp > stamp, "a page that was read before is not sent any more"
        stamp = now.stamp


def test_a_policy_is_read_once_for_all_that_follow_it() -> None:
    policy = retry_policy(initial_delay_seconds=7.0)
    followers = [subscription(retry_policy=policy).pk for _ in range(3)]
    first = destinations_of(followers)
    assert len({id(one.policy) for one in first.values()}) == 1
    again = destinations_of(followers)
    assert all(again[number] is first[number] for number in followers), "the same ones: what is known of them is kept"


def test_rate_and_form_come_along() -> None:
    limited = subscription(rate_limit=4.0, output=PayloadFormat.CLOUDEVENTS_BINARY)
    found = destinations_of([limited.pk])[limited.pk]
    assert (found.spacing, found.output, found.half_open) == (0.25, PayloadFormat.CLOUDEVENTS_BINARY, False)


def test_what_is_paused_goes_nowhere_unless_on_trial() -> None:
    paused = subscription()
    rows = Subscription.objects.filter(pk=paused.pk)
    rows.update(paused_since="2026-11-20T12:00Z", paused_by="POLICY")
    assert destinations_of([paused.pk]) == {}
    rows.update(half_open=True)
    assert destinations_of([paused.pk])[paused.pk].half_open
