"""How long a delivery or a line waits, under every retry policy (contract 4.6 to 4.8, 5.1)."""

from dataclasses import replace
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from delivery.http.transfer import retry_after_seconds
from delivery.outcomes import CALLBACK, TEAMFORGE, Answered, Decision, Outcome, RetryRules, Unreachable, decide
from delivery.retry import (
    CALLBACK_POLICY,
    MAX_RETRY_AFTER_SECONDS,
    TEAMFORGE_POLICY,
    CompiledRetryPolicy,
    History,
    RetryDecision,
    deferred_pause,
    hold_pause,
    judge,
    policy_of,
)
from subscriptions.retry_policies import PRESETS, Action, OnExhausted, RetryTerms

NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)

WORDS = "0 1 32 99 Mon, Feb Sep 2026 9999 99999999999999999999 : 0:0:0 24:00 -0000 +2400 +9999 GMT EST Z ( ) , ; -"
DATE_PARTS = st.sampled_from(WORDS.split())

TEAMFORGE_TERMS = PRESETS["TeamForge"]

EVERY_OUTCOME: list[Outcome] = [
    *map(Answered, range(1000)),
    Unreachable("refused"),
    Unreachable("timed out", was_sent=True),
]
AFTER_TWO = History(attempts=5, times_deferred=2, failures=2)
TAKEN, UNSUPPORTED, REJECTED = Decision.DELIVERED, Decision.NOT_SUPPORTED, Decision.REJECTED
HOLD, DEFER, RETRY = Decision.HOLD_THE_LINE, Decision.DEFER, Decision.RETRY_LANE
FAILED, SUSPEND = Decision.FAILED, Decision.SUSPEND
FIRST = History(attempts=0, times_deferred=0, failures=0)
NINE_OUTCOMES: list[Outcome] = [
    *map(Answered, (204, 307, 408, 425, 429, 410, 503, 502)),
    Unreachable("timed out", was_sent=True),
]
T, W, M, S = PRESETS
MINUTES, HOURS = 60.0, 3_600.0


@pytest.mark.parametrize(
    ("tries", "seconds"), [(1, 1), (2, 2), (3, 4), (4, 8), (5, 16), (6, 32), (7, 60), (8, 60), (1_000_000, 60)]
)
def test_deferred_deliveries_wait_twice_as_long_each_time(tries: int, seconds: float) -> None:
    assert deferred_pause(tries) == seconds


@pytest.mark.parametrize(
    ("failures", "retry_after", "chance", "seconds"),
    [
        (1, None, 0.0, 1),
        (1, None, 1.0, 1),
        (2, None, 0.0, 2),
        (2, None, 1.0, 1.6),
        (7, None, 0.0, 60),
        (7, None, 0.5, 54),
        (10**9, None, 1.0, 48),
        (1, 7.0, 0.5, 7),
        (9, 7.0, 0.5, 7),
        (1, 0.0, 0.5, 1),
        (1, 299.0, 0.5, 299),
        (1, 301.0, 0.5, 300),
        (1, float("inf"), 0.5, 300),
    ],
)
def test_hold_pause(failures: int, retry_after: float | None, chance: float, seconds: float) -> None:
    assert hold_pause(failures, retry_after=retry_after, chance=chance) == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("head", "seconds"),
    [
        (b"HTTP/1.1 503 -\r\n\r\n", None),
        (b"HTTP/1.1 503 -\r\nRetry-After: 120\r\n\r\n", 120),
        (b"HTTP/1.1 503 -\r\nretry-after:7\r\nX: y\r\n\r\n", 7),
        (b"HTTP/1.1 503 -\nRETRY-AFTER: \t 7 \t\n\n", 7),
        (b"HTTP/1.1 503 -\r\nRetry-After: Fri, 20 Nov 2026 12:00:30 GMT\r\n\r\n", 30),
        (b"HTTP/1.1 503 -\r\nRetry-After: Fri, 20 Nov 2026 13:00:30 +0100\r\n\r\n", 30),
        (b"HTTP/1.1 503 -\r\nRetry-After: Fri, 20 Nov 2026 12:00:30\r\n\r\n", 30),
        (b"HTTP/1.1 503 -\r\nRetry-After: Fri, 20 Nov 2026 11:00:00 GMT\r\n\r\n", 0),
        (b"HTTP/1.1 503 -\r\nRetry-After: -1\r\n\r\n", None),
        (b"HTTP/1.1 503 -\r\nRetry-After: 1.5\r\n\r\n", None),
        (b"HTTP/1.1 503 -\r\nRetry-After: soon\r\n\r\n", None),
        (b"HTTP/1.1 503 -\r\nRetry-After:\r\n\r\n", None),
        (b"HTTP/1.1 503 -\r\nRetry-After: \xb2\r\n\r\n", None),
        (b"HTTP/1.1 503 -\r\nX-Retry-After: 5\r\n\r\n", None),
        (b"HTTP/1.1 503 -\r\nRetry-After: " + b"9" * 64 + b"\r\n\r\n", 999999999),
        (b"HTTP/1.1 503 -\r\nRetry-After: " + b"9" * 65 + b"\r\n\r\n", None),
        (b"HTTP/1.1 503 -\r\nRetry-After: 1 Jan 99999999999999999999 00:00:00 GMT\r\n\r\n", None),
        (b"HTTP/1.1 503 -\r\nRetry-After: 1 Jan 2026 00:00:00 -99999999999999999999\r\n\r\n", None),
        (b"HTTP/1.1 503 -\r\nRetry-After: 5\r\nRetry-After: 9\r\n\r\n", 5),
    ],
)
def test_retry_after_is_honoured_up_to_a_limit(head: bytes, seconds: float | None) -> None:
    assert retry_after_seconds(head, at=NOON) == seconds


@given(st.lists(DATE_PARTS, max_size=8).map(" ".join) | st.text(st.characters(min_codepoint=32, max_codepoint=126)))
def test_nothing_an_endpoint_asks_for_breaks_the_line(text: str) -> None:
    seconds = retry_after_seconds(b"HTTP/1.1 503 -\r\nRetry-After: " + text.encode() + b"\r\n\r\n", at=NOON)
    assert seconds is None or seconds >= 0


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


def test_naming_the_default_policy_changes_nothing() -> None:
    assert policy_of(TEAMFORGE_TERMS) is TEAMFORGE_POLICY


@pytest.mark.parametrize("terms", PRESETS.values(), ids=PRESETS)
def test_like_terms_are_one_policy(terms: RetryTerms) -> None:
    assert policy_of(terms) is policy_of(replace(terms))


@pytest.mark.parametrize(("policy", "rules"), [(TEAMFORGE_POLICY, TEAMFORGE), (CALLBACK_POLICY, CALLBACK)])
def test_the_default_pauses_are_those_of_lines(policy: CompiledRetryPolicy, rules: RetryRules) -> None:
    pauses = {DEFER: deferred_pause(3), HOLD: hold_pause(3, retry_after=None, chance=0.5)}
    for outcome in EVERY_OUTCOME:
        decision = decide(outcome, rules)
        assert judge(outcome, policy, AFTER_TWO, chance=0.5) == RetryDecision(decision, pauses.get(decision))


def test_an_endpoint_may_say_when_to_come_back() -> None:
    assert judge(Answered(503, retry_after=7.0), TEAMFORGE_POLICY, AFTER_TWO, chance=0.5) == RetryDecision(HOLD, 7.0)


@pytest.mark.behaviour("5.1")
@pytest.mark.parametrize(
    ("name", "verdicts"),
    [
        (T, [(TAKEN, None), (UNSUPPORTED, None), *[(REJECTED, None)] * 4, (HOLD, 1.0), (DEFER, 1.0), (HOLD, 1.0)]),
        (W, [(TAKEN, None), *[(RETRY, 600.0)] * 8]),
        (M, [(TAKEN, None), (UNSUPPORTED, None), *[(REJECTED, None)] * 4, (HOLD, 10.0), (REJECTED, None),
             (HOLD, 10.0)]),
        (S, [(TAKEN, None), (UNSUPPORTED, None), *[(RETRY, 300.0)] * 3, (REJECTED, None), *[(RETRY, 300.0)] * 3]),
    ],
)  # fmt: skip
def test_how_each_preset_judges_a_first_try(name: str, verdicts: list[tuple[Decision, float | None]]) -> None:
    judged = [judge(outcome, policy_of(PRESETS[name]), FIRST, chance=0.0) for outcome in NINE_OUTCOMES]
    assert [(one.decision, one.pause) for one in judged] == verdicts
    assert not any(one.is_used_up for one in judged)


@pytest.mark.behaviour("5.1", "5.3", "5.5")
@pytest.mark.parametrize(
    ("name", "retries", "outcome", "end"),
    [
        (W, 12, Answered(404), FAILED),
        (W, 12, Unreachable("refused"), FAILED),
        (M, 5, Answered(503), REJECTED),
        (M, 5, Unreachable("refused"), REJECTED),
        (S, 8, Answered(500), FAILED),
    ],
)
def test_each_preset_has_its_number_of_retries(name: str, retries: int, outcome: Outcome, end: Decision) -> None:
    policy = policy_of(PRESETS[name])
    last, used_up = (judge(outcome, policy, replace(FIRST, attempts=n), chance=0.0) for n in (retries - 1, retries))
    assert last.decision in {RETRY, HOLD}
    assert used_up == RetryDecision(end, None, is_used_up=True)


@pytest.mark.behaviour("5.1")
def test_the_default_never_gives_up() -> None:
    after_years = History(attempts=10**7, times_deferred=10**7, failures=10**7)
    for outcome, decision in ((Answered(500), DEFER), (Answered(503), HOLD), (Unreachable("refused"), HOLD)):
        assert judge(outcome, TEAMFORGE_POLICY, after_years, chance=0.0) == RetryDecision(decision, 60.0)


@pytest.mark.behaviour("5.1")
@pytest.mark.parametrize("status", [200, 302, 404])
def test_final_answers_are_never_used_up(status: int) -> None:
    verdict = judge(Answered(status), policy_of(PRESETS[M]), replace(FIRST, attempts=99), chance=0.0)
    assert (verdict.decision, verdict.is_used_up) == (decide(Answered(status), TEAMFORGE), False)


@pytest.mark.behaviour("5.3")
def test_standard_webhooks_waits_by_its_schedule_and_three_days_in_all() -> None:
    policy = policy_of(PRESETS[S])
    pauses = [judge(Answered(500), policy, replace(FIRST, attempts=n), chance=0.0).pause for n in range(8)]
    assert pauses == [5 * MINUTES, 30 * MINUTES, *(hours * HOURS for hours in (2, 5, 10, 14, 20, 24))]
    assert judge(Answered(500), policy, FIRST, chance=1.0).pause == pytest.approx(270.0)


@pytest.mark.behaviour("5.1")
@pytest.mark.parametrize(
    ("action", "honours", "asked", "pause"),
    [
        (Action.RETRY_LANE, True, 5.0, 60.0),
        (Action.RETRY_LANE, True, 900.0, 900.0),
        (Action.RETRY_LANE, True, 9e9, 1_000.0),
        (Action.RETRY_LANE, False, 900.0, 60.0),
        (Action.HOLD, True, 5.0, 60.0),
        (Action.HOLD, True, 900.0, 300.0),
        (Action.HOLD, False, 900.0, 60.0),
        (Action.DEFER, True, 900.0, 900.0),
    ],
)
def test_retry_after_only_lengthens_a_pause(action: Action, honours: bool, asked: float, pause: float) -> None:
    terms = replace(PRESETS[W], on_unavailable=action, respect_retry_after=honours)
    terms = replace(terms, initial_delay_seconds=60.0, max_delay_seconds=1_000.0)
    assert judge(Answered(503, retry_after=asked), policy_of(terms), FIRST, chance=0.0).pause == pause


@pytest.mark.behaviour("5.6")
def test_a_trial_decides_at_once_whatever_was_tried_before() -> None:
    suspends = policy_of(replace(PRESETS[M], on_exhausted=OnExhausted.SUSPEND))
    half_open = replace(FIRST, half_open=True)
    assert judge(Answered(503), suspends, FIRST, chance=0.0).decision is HOLD
    assert judge(Answered(503), suspends, half_open, chance=0.0) == RetryDecision(SUSPEND, 10.0, is_used_up=True)
    assert judge(Answered(200), suspends, half_open, chance=0.0) == RetryDecision(TAKEN, None)
    assert judge(Answered(503), policy_of(PRESETS[M]), half_open, chance=0.0).decision is HOLD


@pytest.mark.behaviour("5.3")
@pytest.mark.parametrize("outcome", [Answered(500), Answered(503), Unreachable("refused")])
@pytest.mark.parametrize("name", [T, W, S])
def test_retries_stay_in_the_retry_line(name: str, outcome: Outcome) -> None:
    history = History(attempts=1, times_deferred=1, failures=0, in_retry_line=True)
    assert judge(outcome, policy_of(PRESETS[name]), history, chance=0.0).decision is RETRY


@pytest.mark.behaviour("5.1")
@pytest.mark.parametrize(
    ("factor", "retry", "pause"),
    [
        (1.0, 10_000, 1.0),
        (3.0, 3, 9.0),
        (1.05, 168, 1.05**167),
        (1.05, 169, HOURS),
        (2.0, 12, 2_048.0),
        (2.0, 10_000, HOURS),
    ],
)
def test_a_pause_grows_until_it_is_the_longest_however_slowly(factor: float, retry: int, pause: float) -> None:
    policy = policy_of(
        replace(PRESETS[W], initial_delay_seconds=1.0, factor=factor, max_delay_seconds=HOURS, max_retries=10_000)
    )
    assert judge(Answered(500), policy, replace(FIRST, attempts=retry - 1), chance=0.0).pause == pause


@pytest.mark.behaviour("5.1")
@pytest.mark.parametrize(
    ("name", "chance", "pause"),
    [(T, 0.0, 60.0), (T, 1.0, 48.0), (W, 0.0, 600.0), (M, 0.0, 10.0), (S, 0.0, max(PRESETS[S].schedule))],
)
def test_a_denied_address_waits_for_the_longest_pause(name: str, chance: float, pause: float) -> None:
    verdict = judge(Unreachable("no", is_refused=True), policy_of(PRESETS[name]), FIRST, chance=chance)
    plain = judge(Unreachable("no"), policy_of(PRESETS[name]), FIRST, chance=chance)
    assert verdict.decision is plain.decision
    assert verdict.pause == pytest.approx(pause)


@given(
    outcome=st.sampled_from(NINE_OUTCOMES) | st.builds(Answered, st.integers(0, 999), st.floats(0, 1e12)),
    terms=st.sampled_from([*PRESETS.values()]),
    factor=st.floats(1.0, 10.0),
    attempts=st.integers(0, 10**6),
    in_retry_line=st.booleans(),
    chance=st.floats(0, 1),
)
def test_every_delivery_ends_or_waits_for_a_limited_time(
    outcome: Outcome, terms: RetryTerms, factor: float, attempts: int, in_retry_line: bool, chance: float
) -> None:
    policy = policy_of(replace(terms, factor=factor))
    history = History(attempts, attempts, attempts, in_retry_line=in_retry_line)
    verdict = judge(outcome, policy, history, chance=chance)
    assert (verdict.pause is None) == (verdict.decision.final_status is not None)
    if verdict.pause is not None:
        assert 0.1 <= verdict.pause <= max(MAX_RETRY_AFTER_SECONDS, terms.max_delay_seconds)
        assert not in_retry_line or verdict.decision is RETRY
