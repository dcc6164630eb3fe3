"""What outcomes come to under each retry policy (behaviour 5.1)."""

from dataclasses import replace

import pytest

from delivery.rules.outcomes import CALLBACK, TEAMFORGE, Answered, Decision, Outcome, RetryRules, Unreachable, decide
from delivery.rules.pauses import aside_pause, hold_pause
from delivery.rules.retry_policies import (
    CALLBACK_POLICY,
    TEAMFORGE_POLICY,
    History,
    RetryPolicy,
    Verdict,
    judge,
    policy_of,
)
from subscriptions.retry_terms import PRESETS, Action, Terms

TEAMFORGE_TERMS = PRESETS["TeamForge"]
OUTCOMES: list[Outcome] = [
    Answered(200),
    Answered(301),
    Answered(429),
    Answered(404),
    Answered(503),
    Answered(500),
    Unreachable("refused"),
]
EVERY_OUTCOME: list[Outcome] = [
    *map(Answered, range(1000)),
    Unreachable("refused"),
    Unreachable("timed out", was_sent=True),
]
AFTER_TWO = History(attempts=5, times_set_aside=2, failures=2)
TAKEN, UNSUPPORTED, REJECTED = Decision.DELIVERED, Decision.NOT_SUPPORTED, Decision.REJECTED
HOLD, ASIDE, APART = Decision.HOLD_THE_LINE, Decision.SET_ASIDE, Decision.RETRY_APART


@pytest.mark.behaviour("5.1")
@pytest.mark.parametrize(
    ("name", "decisions"),
    [
        ("TeamForge", [TAKEN, UNSUPPORTED, REJECTED, REJECTED, HOLD, ASIDE, HOLD]),
        ("Workfront", [TAKEN, APART, APART, APART, APART, APART, APART]),
        ("webMethods", [TAKEN, UNSUPPORTED, REJECTED, REJECTED, HOLD, REJECTED, HOLD]),
        ("Standard-Webhooks", [TAKEN, UNSUPPORTED, APART, REJECTED, APART, APART, APART]),
    ],
)
def test_what_each_preset_makes_of_an_outcome(name: str, decisions: list[Decision]) -> None:
    policy = policy_of(PRESETS[name])
    assert [decide(outcome, policy.rules) for outcome in OUTCOMES] == decisions


@pytest.mark.behaviour("5.1")
@pytest.mark.parametrize("status", [408, 425, 429])
def test_an_endpoint_that_is_throttling_is_told_from_one_that_refuses(status: int) -> None:
    rules = policy_of(replace(TEAMFORGE_TERMS, on_throttled=Action.HOLD)).rules
    assert (decide(Answered(status), rules), decide(Answered(404), rules)) == (HOLD, REJECTED)


def test_the_terms_of_the_default_policy_say_what_the_default_rules_do() -> None:
    spelled_out = policy_of(replace(TEAMFORGE_TERMS, probe_seconds=61.0))
    assert spelled_out is not TEAMFORGE_POLICY
    for outcome in EVERY_OUTCOME:
        assert decide(outcome, spelled_out.rules) == decide(outcome, TEAMFORGE)


def test_whoever_names_the_default_policy_follows_the_same_as_who_names_none() -> None:
    assert policy_of(TEAMFORGE_TERMS) is TEAMFORGE_POLICY


@pytest.mark.parametrize("terms", PRESETS.values(), ids=PRESETS)
def test_like_terms_are_one_policy(terms: Terms) -> None:
    assert policy_of(terms) is policy_of(replace(terms))


@pytest.mark.parametrize(("policy", "rules"), [(TEAMFORGE_POLICY, TEAMFORGE), (CALLBACK_POLICY, CALLBACK)])
def test_without_a_spacing_of_its_own_a_policy_pauses_as_lines_always_do(
    policy: RetryPolicy, rules: RetryRules
) -> None:
    pauses = {ASIDE: aside_pause(3), HOLD: hold_pause(3, retry_after=None, chance=0.5)}
    for outcome in EVERY_OUTCOME:
        decision = decide(outcome, rules)
        assert judge(outcome, policy, AFTER_TWO, chance=0.5) == Verdict(decision, pauses.get(decision))


def test_an_endpoint_may_say_when_to_come_back() -> None:
    assert judge(Answered(503, retry_after=7.0), TEAMFORGE_POLICY, AFTER_TWO, chance=0.5) == Verdict(HOLD, 7.0)
