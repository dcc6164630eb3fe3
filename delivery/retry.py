"""Retry policies: what an outcome means, how long to wait before the next try, when to give up (contract 5.1)."""

from dataclasses import dataclass
from functools import lru_cache
from math import log
from typing import Final

from delivery.outcomes import CALLBACK, TEAMFORGE, Answered, Decision, Outcome, RetryRules, decide, is_out_of_reach
from subscriptions import retry_policies
from subscriptions.retry_policies import Action, OnExhausted, RetryTerms

THROTTLING: Final = (408, 425, 429)
"""Answers of an endpoint that would take the request later."""

HOLDING: Final = frozenset({Decision.HOLD_THE_LINE, Decision.SUSPEND})
"""What stops a main line; a suspension does so too, for its pause, in case its subscription is not paused after all."""

FIRST_PAUSE_SECONDS: Final = 1.0
MAX_PAUSE_SECONDS: Final = 60.0
MAX_RETRY_AFTER_SECONDS: Final = 300.0
"""An endpoint may ask for more; it is not given more."""
JITTER: Final = 0.2
"""The share by which a held line's pause may be shorter, so that lines held together do not come back together."""

DECISIONS: Final = {
    Action.HOLD: Decision.HOLD_THE_LINE,
    Action.DEFER: Decision.DEFER,
    Action.RETRY_LANE: Decision.RETRY_LANE,
    Action.END: Decision.REJECTED,
}
"""What an action means for a delivery; one that a redirect ends is not rejected but not supported."""

IN_THE_END: Final = {
    OnExhausted.FAIL: Decision.FAILED,
    OnExhausted.REJECT: Decision.REJECTED,
    OnExhausted.SUSPEND: Decision.SUSPEND,
}
"""What happens to a delivery whose retries are used up."""


@dataclass(frozen=True, slots=True, eq=False)
class CompiledRetryPolicy:
    """How failed deliveries are tried again; equal only to itself."""

    rules: RetryRules
    terms: RetryTerms | None = None
    """None: it never gives up, and its pauses are `hold_pause` and `deferred_pause`."""


TEAMFORGE_POLICY: Final = CompiledRetryPolicy(TEAMFORGE)
CALLBACK_POLICY: Final = CompiledRetryPolicy(CALLBACK)


@dataclass(frozen=True, slots=True)
class History:
    """The past of a delivery and its line, before the outcome that is judged."""

    attempts: int
    """Recorded attempts of the delivery."""
    times_deferred: int
    failures: int
    """Failures of the line in a row."""
    in_retry_line: bool = False
    half_open: bool = False
    """Whether its subscription is suspended, and probed with this delivery."""


@dataclass(frozen=True, slots=True)
class RetryDecision:
    """What an outcome means for a delivery, and how long it waits."""

    decision: Decision
    pause: float | None
    """Seconds: of the line if it is stopped, otherwise of the delivery; None if nothing waits."""
    is_used_up: bool = False
    """Whether only its number of retries keeps it from being tried again."""


def judge(outcome: Outcome, policy: CompiledRetryPolicy, history: History, *, chance: float) -> RetryDecision:
    """Return what an attempt's outcome means for its delivery; `chance`, 0 to 1, shortens pauses with jitter."""
    decision = decide(outcome, policy.rules)
    if decision.final_status:
        return RetryDecision(decision, None)
    terms = policy.terms
    is_used_up = terms is not None and (
        (history.half_open and terms.on_exhausted is OnExhausted.SUSPEND)  # its probe has failed
        or (terms.max_retries is not None and history.attempts >= terms.max_retries)
    )
    if terms and is_used_up:
        decision = IN_THE_END[terms.on_exhausted]
    elif history.in_retry_line:
        decision = Decision.RETRY_LANE
    pause = None if decision.final_status else _pause(outcome, policy, history, decision, chance)
    return RetryDecision(decision, pause, is_used_up)


def _pause(outcome: Outcome, policy: CompiledRetryPolicy, history: History, decision: Decision, chance: float) -> float:
    terms = policy.terms
    if is_out_of_reach(outcome):  # trying soon is no help, and a changed endpoint makes it due at once
        longest, jitter = MAX_PAUSE_SECONDS, JITTER
        if terms:
            longest, jitter = max(terms.schedule, default=terms.max_delay_seconds), terms.jitter
        return longest * (1.0 - jitter * chance)
    retry_after = outcome.retry_after if isinstance(outcome, Answered) else None
    if terms:
        longest = MAX_RETRY_AFTER_SECONDS if decision in HOLDING else terms.max_delay_seconds
        return retry_delay(terms, history.attempts + 1, retry_after=retry_after, longest=longest, chance=chance)
    if decision is Decision.DEFER:
        return deferred_pause(history.times_deferred + 1)
    failures = history.attempts if history.in_retry_line else history.failures
    return hold_pause(failures + 1, retry_after=retry_after, chance=chance)


@lru_cache(maxsize=1024)
def policy_of(terms: RetryTerms) -> CompiledRetryPolicy:
    """Return the policy with these terms: the same value each time, the default policy for the default terms."""
    if terms == retry_policies.TEAMFORGE:
        return TEAMFORGE_POLICY
    redirected = Decision.NOT_SUPPORTED if terms.on_redirect is Action.END else DECISIONS[terms.on_redirect]
    rules = RetryRules(
        on_no_answer=DECISIONS[terms.on_no_answer],
        by_status=dict.fromkeys(THROTTLING, DECISIONS[terms.on_throttled]) | {503: DECISIONS[terms.on_unavailable]},
        by_class={2: Decision.DELIVERED, 3: redirected, 4: DECISIONS[terms.on_client_error]},
        otherwise=DECISIONS[terms.on_server_error],
    )
    return CompiledRetryPolicy(rules, terms)


def retry_delay(terms: RetryTerms, retry: int, *, retry_after: float | None, longest: float, chance: float) -> float:
    """Return the seconds before the `retry`-th try after the first one; `chance`, 0 to 1, shortens them by jitter.

    What the endpoint asks for only lengthens them, up to `longest`.
    """
    first, most = terms.initial_delay_seconds, terms.max_delay_seconds
    if terms.schedule:
        pause = terms.schedule[min(retry, len(terms.schedule)) - 1]
    # By logarithms: a pause that reached the longest long ago might be no number any more.
    elif (retry - 1) * log(terms.factor) >= log(most / first):
        pause = most
    else:
        pause = min(most, first * terms.factor ** (retry - 1))
    pause *= 1.0 - terms.jitter * chance
    if retry_after is None or not terms.respect_retry_after:
        return pause
    return max(pause, min(retry_after, longest))


def deferred_pause(tries: int) -> float:
    """Return the seconds until a delivery deferred for the `tries`-th time is due again: 1, 2, 4 … 60."""
    return min(MAX_PAUSE_SECONDS, FIRST_PAUSE_SECONDS * 2.0 ** min(tries - 1, 16))


def hold_pause(failures: int, *, retry_after: float | None, chance: float) -> float:
    """Return the seconds a held line waits after `failures` unsuccessful tries in a row.

    It grows from 1 to 60 s, less up to a fifth by `chance` (0 to 1). `Retry-After` is respected up to 300 s.
    """
    if retry_after is not None:
        return min(max(retry_after, FIRST_PAUSE_SECONDS), MAX_RETRY_AFTER_SECONDS)
    return max(FIRST_PAUSE_SECONDS, deferred_pause(failures) * (1.0 - JITTER * chance))
