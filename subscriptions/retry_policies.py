"""Retry policies: their terms, limits and presets (contract 5.1)."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any, Final

from django.core.exceptions import ValidationError
from django.db.models import TextChoices

_MINUTE, _HOUR, _DAY = 60.0, 3_600.0, 86_400.0

DELAYS: Final = (0.1, 7 * _DAY)
"""Seconds; a failing endpoint is never retried at full speed."""
LIMITS: Final[Mapping[str, tuple[float, float]]] = {
    "initial_delay_seconds": DELAYS,
    "factor": (1.0, 10.0),
    "max_delay_seconds": DELAYS,
    "jitter": (0.0, 0.5),
    "max_retries": (0, 1_000),
    "probe_seconds": (1.0, _DAY),
}
"""The least and the greatest value of each number."""
MAX_SCHEDULED: Final = 100


class Action(TextChoices):
    """How a delivery goes on after an unsuccessful attempt."""

    HOLD = "HOLD"
    """It is retried before anything else of its subscriber: it holds the line (contract 4.7, 4.8)."""

    DEFER = "DEFER"
    """Its line retries it, and sends the next deliveries meanwhile (contract 4.6)."""

    RETRY_LANE = "RETRY_LANE"
    """The subscriber's retry line retries it; nothing waits for that (contract 5.3)."""

    END = "END"
    """It is not retried: a redirect ends 3xxNOTSUPPORTED, anything else REJECTED."""


class OnExhausted(TextChoices):
    """What happens after the last retry."""

    NEVER = "NEVER"
    """There is no last retry: it is retried until it succeeds."""

    FAIL = "FAIL"
    """It ends FAILED (contract 5.3)."""

    REJECT = "REJECT"
    """It ends REJECTED (contract 5.5)."""

    SUSPEND = "SUSPEND"
    """It goes back to its place, and its subscription pauses until a probe succeeds (contract 5.6)."""


@dataclass(frozen=True, slots=True)
class RetryTerms:
    """The terms of a retry policy, with one action for each kind of failure; all times in seconds.

    The n-th retry waits for the n-th entry of `schedule`, beyond its end for the last one. Without a schedule it waits
    for `initial_delay_seconds` times `factor` for each earlier retry, at most `max_delay_seconds`. Either delay is
    shortened at random by up to the share `jitter`, and extended if the endpoint sends `Retry-After` and the policy
    respects it.
    """

    on_redirect: Action
    on_throttled: Action
    """408, 425 and 429."""
    on_client_error: Action
    """Any other 4xx."""
    on_unavailable: Action
    """503."""
    on_server_error: Action
    """Any other 5xx, and invalid statuses: below 200 or above 599."""
    on_no_answer: Action
    initial_delay_seconds: float
    factor: float = 1.0
    max_delay_seconds: float = 60.0
    jitter: float = 0.0
    schedule: tuple[float, ...] = ()
    respect_retry_after: bool = False
    max_retries: int | None = None
    """After the first attempt; None: without limit, and only then `on_exhausted` is NEVER."""
    on_exhausted: OnExhausted = OnExhausted.NEVER
    probe_seconds: float = 60.0
    """Between two probes of a suspended subscription."""


TERMS: Final = tuple(field.name for field in fields(RetryTerms))
ACTIONS: Final = tuple(name for name in TERMS if name.startswith("on_") and name != "on_exhausted")


def terms_of(values: Mapping[str, Any]) -> RetryTerms:
    """Return the terms of stored `values`, one for each of `TERMS`; raise `ValueError` for an unknown action or end."""
    actions = {name: Action(values[name]) for name in ACTIONS}
    end, schedule = OnExhausted(values["on_exhausted"]), tuple(values["schedule"])
    return RetryTerms(
        **{**{name: values[name] for name in TERMS}, **actions, "on_exhausted": end, "schedule": schedule}
    )


_HOLD, _DEFER, _LANE, _END = Action.HOLD, Action.DEFER, Action.RETRY_LANE, Action.END

PRESETS: Final[Mapping[str, RetryTerms]] = {
    "TeamForge": RetryTerms(
        *(_END, _END, _END, _HOLD, _DEFER, _HOLD),
        initial_delay_seconds=1.0,
        factor=2.0,
        jitter=0.2,
        respect_retry_after=True,
    ),
    "Workfront": RetryTerms(
        *(_LANE, _LANE, _LANE, _LANE, _LANE, _LANE),
        initial_delay_seconds=10 * _MINUTE,
        max_delay_seconds=10 * _MINUTE,
        max_retries=12,
        on_exhausted=OnExhausted.FAIL,
    ),
    "webMethods": RetryTerms(
        *(_END, _END, _END, _HOLD, _END, _HOLD),
        initial_delay_seconds=10.0,
        max_delay_seconds=10.0,
        max_retries=5,
        on_exhausted=OnExhausted.REJECT,
    ),
    "Standard-Webhooks": RetryTerms(
        *(_END, _LANE, _END, _LANE, _LANE, _LANE),
        initial_delay_seconds=5 * _MINUTE,
        max_delay_seconds=24 * _HOUR,
        jitter=0.1,
        schedule=(5 * _MINUTE, 30 * _MINUTE, *(hours * _HOUR for hours in (2, 5, 10, 14, 20, 24))),
        respect_retry_after=True,
        max_retries=8,
        on_exhausted=OnExhausted.FAIL,
    ),
}
"""The policies installed with the broker, by name, in the order of contract 5.1."""

TEAMFORGE: Final = PRESETS["TeamForge"]
"""The policy of subscriptions without one (contract 4.3 to 4.8)."""


def check_terms(terms: RetryTerms) -> None:
    """Raise `ValidationError`, by field, unless the terms are within their limits and go together."""
    if refused := dict(_not_together(terms)) | dict(_out_of_range(terms)):
        raise ValidationError({name: ValidationError(text, code=name) for name, text in refused.items()})


def _out_of_range(terms: RetryTerms) -> Iterator[tuple[str, str]]:
    for name, (least, greatest) in LIMITS.items():
        if not least <= (getattr(terms, name) or 0) <= greatest:  # NaN neither
            yield name, f"This is from {least:g} to {greatest:g}."
    if len(terms.schedule) > MAX_SCHEDULED:
        yield "schedule", f"A schedule has at most {MAX_SCHEDULED} pauses."
    if not all(DELAYS[0] <= delay <= DELAYS[1] for delay in terms.schedule):
        yield "schedule", f"Each pause is from {DELAYS[0]:g} to {DELAYS[1]:g} seconds."


def _not_together(terms: RetryTerms) -> Iterator[tuple[str, str]]:
    gives_up = terms.on_exhausted != OnExhausted.NEVER
    if gives_up and terms.max_retries is None:
        yield "max_retries", "Say after how many retries it comes to an end, or that it never does: NEVER."
    if not gives_up and terms.max_retries is not None:
        yield "on_exhausted", "Say what happens after the last retry, or leave max_retries out: it never gives up."
    if terms.max_delay_seconds < max((terms.initial_delay_seconds, *terms.schedule)):
        yield "max_delay_seconds", "The longest pause is no shorter than the first one and each of the schedule."
