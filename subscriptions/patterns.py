"""Patterns of event types: a name's beginning and `.*`, or `*` for all (behaviour 1.9)."""

from functools import lru_cache
from typing import Final

from django.core.exceptions import ValidationError

from subscriptions.names import MAX_NAME_LENGTH, is_name, is_own

REACHED_KIND: Final = "TOPIC"
"""Patterns reach event types of this kind only."""
EVERYTHING: Final = "*"
BELOW: Final = ".*"
PATTERN_PATTERN: Final = r"^(\*|[A-Za-z0-9][A-Za-z0-9._-]*\.\*)$"


def validate_pattern(pattern: str) -> None:
    """Raise `ValidationError` unless `pattern` is the beginning of a name followed by `.*`, or `*` alone."""
    if len(pattern) > MAX_NAME_LENGTH:
        raise _refused(f"A pattern has at most {MAX_NAME_LENGTH} characters, this one {len(pattern)}.")
    beginning = pattern.removesuffix(BELOW)
    if pattern != EVERYTHING and (beginning == pattern or not is_name(beginning)):
        raise _refused(
            "A pattern is the beginning of a name up to a dot, followed by '.*', as in TeamForge.Artifact.*, "
            "or '*' alone for every event type; give a whole name as the event type."
        )


@lru_cache(maxsize=4096)
def patterns_of(name: str) -> tuple[str, ...]:
    """Return every pattern that reaches the TOPIC event type `name`: `A.B` is reached by `*` and `A.*`.

    What the broker publishes of its own accord reaches only those who name it: `*` does not.
    """
    below = tuple(name[:place] + BELOW for place, letter in enumerate(name) if letter == ".")
    return below if is_own(name) else (EVERYTHING, *below)


def _refused(text: str) -> ValidationError:
    return ValidationError(text, code="event_pattern")
