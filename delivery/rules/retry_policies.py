"""Retry policies: which outcome means what, how long until the next try, and what comes in the end (behaviour 5.1)."""

from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from delivery.rules.outcomes import CALLBACK, TEAMFORGE, Answered, Decision, Outcome, RetryRules, decide
from delivery.rules.pauses import LONGEST_RETRY_AFTER_SECONDS, aside_pause, hold_pause
from subscriptions import retry_terms
from subscriptions.retry_terms import Action, InTheEnd, Terms

THROTTLING: Final = (408, 425, 429)
"""Answers of an endpoint that would take the request later."""

DECISIONS: Final = {
    Action.HOLD: Decision.HOLD_THE_LINE,
    Action.SET_ASIDE: Decision.SET_ASIDE,
    Action.RETRY_APART: Decision.RETRY_APART,
    Action.END: Decision.REJECTED,
}
"""What an action makes of a delivery; a redirect that ends it is not rejected but not supported."""

IN_THE_END: Final = {
    InTheEnd.FAIL: Decision.FAILED,
    InTheEnd.REJECT: Decision.REJECTED,
    InTheEnd.SUSPEND: Decision.SUSPEND,
}
"""What becomes of a delivery whose retries are used up."""

MOST_DOUBLINGS: Final = 64
"""Pauses have reached their longest by then, whatever they grow by; beyond, a power might be no number any more."""


@dataclass(frozen=True, slots=True)
class Spacing:
    """How long a delivery waits before each of its retries; all in seconds."""

    first: float
    factor: float
    """By which each pause is longer than the one before it."""
    longest: float
    jitter: float
    """The share by which a pause may be shorter."""
    schedule: tuple[float, ...] = ()
    """The pauses one by one, instead of `first`, `factor` and `longest`; empty: there is none."""
    honours_retry_after: bool = True


@dataclass(frozen=True, slots=True, eq=False)
class RetryPolicy:
    """What is done about deliveries that were not taken; equal only to itself."""

    rules: RetryRules
    spacing: Spacing | None = None
    """None: the pauses of `pauses`."""
    most_retries: int | None = None
    """None: it never gives up."""
    in_the_end: InTheEnd = InTheEnd.NEVER
    probe_seconds: float = 0.0
    """How often a suspended subscription is tried."""


TEAMFORGE_POLICY: Final = RetryPolicy(TEAMFORGE)
CALLBACK_POLICY: Final = RetryPolicy(CALLBACK)


@dataclass(frozen=True, slots=True)
class History:
    """What has become of a delivery and its line before the outcome that is judged."""

    attempts: int
    """Recorded of the delivery."""
    times_set_aside: int
    failures: int
    """Of the line, in a row."""
    is_apart: bool = False
    """Whether it is in the retry line."""
    on_trial: bool = False
    """Whether its subscription is suspended, and tried with this delivery."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What an outcome makes of a delivery, and how long it waits."""

    decision: Decision
    pause: float | None
    """Seconds: of the line where it is held, of the delivery otherwise; None where nothing waits."""
    is_used_up: bool = False
    """Whether it would have been tried again, had it not been tried as often as it may be."""


def judge(outcome: Outcome, policy: RetryPolicy, history: History, *, chance: float) -> Verdict:
    """Return what an attempt's outcome makes of its delivery; `chance`, 0 to 1, shortens what has jitter."""
    decision = decide(outcome, policy.rules)
    if decision.final_status:
        return Verdict(decision, None)
    if _is_used_up(policy, history):
        return Verdict(IN_THE_END[policy.in_the_end], None, is_used_up=True)
    retry_after = outcome.retry_after if isinstance(outcome, Answered) else None
    if history.is_apart:
        decision = Decision.RETRY_APART
    if policy.spacing:
        return Verdict(decision, _spaced(policy.spacing, decision, history.attempts + 1, retry_after, chance))
    return Verdict(decision, _default_pause(decision, history, retry_after, chance))


def _is_used_up(policy: RetryPolicy, history: History) -> bool:
    """Tell whether there is no further try: also where the one that a suspended subscription has was in vain."""
    if history.on_trial and policy.in_the_end is InTheEnd.SUSPEND:
        return True
    return policy.most_retries is not None and history.attempts >= policy.most_retries


def _default_pause(decision: Decision, history: History, retry_after: float | None, chance: float) -> float:
    if decision is Decision.SET_ASIDE:
        return aside_pause(history.times_set_aside + 1)
    failures = history.attempts if history.is_apart else history.failures
    return hold_pause(failures + 1, retry_after=retry_after, chance=chance)


def _spaced(spacing: Spacing, decision: Decision, retry: int, retry_after: float | None, chance: float) -> float:
    """Return the seconds before the `retry`-th try after the first one; what the endpoint asks for only lengthens."""
    if spacing.schedule:
        pause = spacing.schedule[min(retry, len(spacing.schedule)) - 1]
    else:
        pause = min(spacing.longest, spacing.first * spacing.factor ** min(retry - 1, MOST_DOUBLINGS))
    pause *= 1.0 - spacing.jitter * chance
    if retry_after is None or not spacing.honours_retry_after:
        return pause
    most = LONGEST_RETRY_AFTER_SECONDS if decision is Decision.HOLD_THE_LINE else spacing.longest
    return max(pause, min(retry_after, most))


@lru_cache(maxsize=1024)
def policy_of(terms: Terms) -> RetryPolicy:
    """Return the policy with these terms: the same value each time, and the default one for its own."""
    if terms == retry_terms.TEAMFORGE:
        return TEAMFORGE_POLICY
    return RetryPolicy(
        rules=_rules_of(terms),
        spacing=Spacing(
            first=terms.first_pause,
            factor=terms.factor,
            longest=terms.longest_pause,
            jitter=terms.jitter,
            schedule=terms.schedule,
            honours_retry_after=terms.honours_retry_after,
        ),
        most_retries=terms.most_retries,
        in_the_end=terms.in_the_end,
        probe_seconds=terms.probe_seconds,
    )


def _rules_of(terms: Terms) -> RetryRules:
    redirected = Decision.NOT_SUPPORTED if terms.on_redirect is Action.END else DECISIONS[terms.on_redirect]
    return RetryRules(
        on_no_answer=DECISIONS[terms.on_no_answer],
        by_status=dict.fromkeys(THROTTLING, DECISIONS[terms.on_throttled]) | {503: DECISIONS[terms.on_unavailable]},
        by_class={2: Decision.DELIVERED, 3: redirected, 4: DECISIONS[terms.on_client_error]},
        otherwise=DECISIONS[terms.on_server_error],
    )
