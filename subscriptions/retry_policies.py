"""Retry policies: their terms, limits and presets (contract 5.1)."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any, Final

from django.core.exceptions import ValidationError
from django.db.models import TextChoices

_MINUTE, _HOUR = 60.0, 3_600.0

DAY: Final = 86_400.0

PAUSES: Final = (0.1, 7 * DAY)
"""Seconds; an endpoint that fails is never asked again at full speed."""
FACTORS: Final = (1.0, 10.0)
JITTERS: Final = (0.0, 0.5)
PROBES: Final = (1.0, DAY)
"""Seconds."""
RETRIES: Final = (0, 1_000)
MAX_SCHEDULED: Final = 100


class Action(TextChoices):
    """What an unsuccessful outcome means for its delivery."""

    HOLD = "HOLD"
    """Tried again before anything else of its subscriber: the line waits (contract 4.7, 4.8)."""

    DEFER = "DEFER"
    """Tried again by its line, which goes on with the next one meanwhile (contract 4.6)."""

    RETRY_LANE = "RETRY_LANE"
    """Tried again by the subscriber's retry line, which holds up nothing (contract 5.3)."""

    END = "END"
    """Never tried again: a redirect is 3xxNOTSUPPORTED, anything else REJECTED."""


class OnExhausted(TextChoices):
    """What happens when a delivery has been tried again as often as it may be."""

    NEVER = "NEVER"
    """That does not come: it is tried until it succeeds."""

    FAIL = "FAIL"
    """It ends FAILED (contract 5.3)."""

    REJECT = "REJECT"
    """It ends REJECTED (contract 5.5)."""

    SUSPEND = "SUSPEND"
    """It goes back to its place, and its subscription pauses until a probe works (contract 5.6)."""


@dataclass(frozen=True, slots=True)
class RetryTerms:
    """What a retry policy says, one action for each way to fail; all times in seconds.

    The n-th retry waits for the n-th entry of `schedule`, or for its last entry beyond its end. Without a schedule it
    waits for `initial_delay_seconds` times `factor` for each earlier retry, at most `max_delay_seconds`. Either is
    shortened at random by up to the share `jitter`, and is longer if the endpoint sends `Retry-After` and the policy
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
    """Any other 5xx, and what is no status: below 200 or above 599."""
    on_no_answer: Action
    initial_delay_seconds: float
    factor: float = 1.0
    max_delay_seconds: float = 60.0
    jitter: float = 0.0
    schedule: tuple[float, ...] = ()
    respect_retry_after: bool = False
    max_retries: int | None = None
    """After the first try; None: without limit, and only then is there no end."""
    on_exhausted: OnExhausted = OnExhausted.NEVER
    probe_seconds: float = 60.0
    """Between two probes of a suspended subscription."""


TERMS: Final = tuple(field.name for field in fields(RetryTerms))
ACTIONS: Final = tuple(name for name in TERMS if name.startswith("on_") and name != "on_exhausted")


def terms_of(values: Mapping[str, Any]) -> RetryTerms:
    """Return the terms that stored `values` say, one for each of `TERMS`.

    Raises:
        ValueError: an action or an end is unknown.

    """
    actions = {name: Action(values[name]) for name in ACTIONS}
    end, schedule = OnExhausted(values["on_exhausted"]), tuple(values["schedule"])
    return RetryTerms(
        **{**{name: values[name] for name in TERMS}, **actions, "on_exhausted": end, "schedule": schedule}
    )


_HOLD, _ASIDE, _APART, _END = Action.HOLD, Action.DEFER, Action.RETRY_LANE, Action.END

PRESETS: Final[Mapping[str, RetryTerms]] = {
    "TeamForge": RetryTerms(
        *(_END, _END, _END, _HOLD, _ASIDE, _HOLD),
        initial_delay_seconds=1.0,
        factor=2.0,
        jitter=0.2,
        respect_retry_after=True,
    ),
    "Workfront": RetryTerms(
        *(_APART, _APART, _APART, _APART, _APART, _APART),
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
        *(_END, _APART, _END, _APART, _APART, _APART),
        initial_delay_seconds=5 * _MINUTE,
        max_delay_seconds=24 * _HOUR,
        jitter=0.1,
        schedule=(5 * _MINUTE, 30 * _MINUTE, *(hours * _HOUR for hours in (2, 5, 10, 14, 20, 24))),
        respect_retry_after=True,
        max_retries=8,
        on_exhausted=OnExhausted.FAIL,
    ),
}
"""What comes installed, by name, in the order of the table of contract 5.1."""

TEAMFORGE: Final = PRESETS["TeamForge"]
"""What a subscription without a policy follows (contract 4.3 to 4.8)."""


def check_terms(terms: RetryTerms) -> None:
    """Raise `ValidationError`, by field, unless the terms are within their limits and go together."""
    if refused := dict(_not_together(terms)) | dict(_out_of_range(terms)):
        raise ValidationError({name: ValidationError(text, code=name) for name, text in refused.items()})


def _out_of_range(terms: RetryTerms) -> Iterator[tuple[str, str]]:
    ranges = {
        "initial_delay_seconds": (terms.initial_delay_seconds, *PAUSES),
        "factor": (terms.factor, *FACTORS),
        "max_delay_seconds": (terms.max_delay_seconds, *PAUSES),
        "jitter": (terms.jitter, *JITTERS),
        "max_retries": (terms.max_retries or 0, *RETRIES),
        "probe_seconds": (terms.probe_seconds, *PROBES),
    }
    for name, (value, least, most) in ranges.items():
        if not least <= value <= most:  # nor is what is no number
            yield name, f"This is from {least:g} to {most:g}."
    if len(terms.schedule) > MAX_SCHEDULED:
        yield "schedule", f"A schedule has at most {MAX_SCHEDULED} pauses."
    if not all(PAUSES[0] <= pause <= PAUSES[1] for pause in terms.schedule):
        yield "schedule", f"Each pause is from {PAUSES[0]:g} to {PAUSES[1]:g} seconds."


def _not_together(terms: RetryTerms) -> Iterator[tuple[str, str]]:
    gives_up = terms.on_exhausted != OnExhausted.NEVER
    if gives_up and terms.max_retries is None:
        yield "max_retries", "Say after how many retries it comes to an end, or that it never does: NEVER."
    if not gives_up and terms.max_retries is not None:
        yield "on_exhausted", "Say what happens after the last retry, or leave max_retries out: it never gives up."
    if terms.max_delay_seconds < max((terms.initial_delay_seconds, *terms.schedule)):
        yield "max_delay_seconds", "The longest pause is no shorter than the first one and each of the schedule."
