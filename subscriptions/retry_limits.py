"""Which terms of a retry policy go together, and how far each may go (behaviour 5.1)."""

from collections.abc import Iterator
from typing import Final

from django.core.exceptions import ValidationError

from subscriptions.retry_policies import OnExhausted, Terms

DAY: Final = 86_400.0

PAUSES: Final = (0.1, 7 * DAY)
"""Seconds; an endpoint that fails is never asked again at full speed."""
FACTORS: Final = (1.0, 10.0)
JITTERS: Final = (0.0, 0.5)
PROBES: Final = (1.0, DAY)
"""Seconds."""
RETRIES: Final = (0, 1_000)
MOST_SCHEDULED: Final = 100


def check_terms(terms: Terms) -> None:
    """Raise `ValidationError`, by field, unless the terms are within their limits and go together."""
    if refused := dict(_not_together(terms)) | dict(_out_of_range(terms)):
        raise ValidationError({name: ValidationError(text, code=name) for name, text in refused.items()})


def _out_of_range(terms: Terms) -> Iterator[tuple[str, str]]:
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
    if len(terms.schedule) > MOST_SCHEDULED:
        yield "schedule", f"A schedule has at most {MOST_SCHEDULED} pauses."
    if not all(PAUSES[0] <= pause <= PAUSES[1] for pause in terms.schedule):
        yield "schedule", f"Each pause is from {PAUSES[0]:g} to {PAUSES[1]:g} seconds."


def _not_together(terms: Terms) -> Iterator[tuple[str, str]]:
    gives_up = terms.on_exhausted != OnExhausted.NEVER
    if gives_up and terms.max_retries is None:
        yield "max_retries", "Say after how many retries it comes to an end, or that it never does: NEVER."
    if not gives_up and terms.max_retries is not None:
        yield "on_exhausted", "Say what happens after the last retry, or leave max_retries out: it never gives up."
    if terms.max_delay_seconds < max((terms.initial_delay_seconds, *terms.schedule)):
        yield "max_delay_seconds", "The longest pause is no shorter than the first one and each of the schedule."
