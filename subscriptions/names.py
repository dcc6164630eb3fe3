"""Names of event types, publishers and subscribers, and patterns of event types (contract 1.9)."""

import re
from functools import lru_cache
from typing import Final

from django.core.exceptions import ValidationError
from django.urls.converters import StringConverter

MAX_NAME_LENGTH: Final = 255
FIRST: Final = "[A-Za-z0-9]"
FURTHER: Final = "[A-Za-z0-9._-]"
NAME_PATTERN: Final = f"^{FIRST}{FURTHER}*$"
"""Letters, digits, dot, underscore, hyphen: a name needs no escaping in URLs, headers and logs."""
OWN_EVENTS: Final = "Broker."
"""The prefix of the broker's own event types (contract 5.7)."""

HIDDEN: Final = re.compile(
    r"[\x00-\x1f\x7f-\x9f\xad\u061c\u115f\u1160\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\u3164"
    r"\ud800-\udfff\ufeff\uffa0\ufff9-\ufffb]"
)
"""Control characters, line ends, characters that change the text direction, what has no width, and half characters."""

_NAME = re.compile(f"{FIRST}{FURTHER}*")

REACHED_KIND: Final = "TOPIC"
"""Patterns match event types of this kind only."""
EVERYTHING: Final = "*"
BELOW: Final = ".*"
PATTERN_PATTERN: Final = r"^(\*|[A-Za-z0-9][A-Za-z0-9._-]*\.\*)$"


def validate_name(name: str) -> None:
    """Raise `ValidationError` unless `name` can name an event type, a publisher or a subscriber."""
    if len(name) > MAX_NAME_LENGTH:
        raise ValidationError(f"A name has at most {MAX_NAME_LENGTH} characters, this one {len(name)}.", code="name")
    if not is_name(name):
        raise ValidationError(
            "A name begins with a letter or digit and goes on with letters, digits, '.', '_' or '-'.", code="name"
        )


def validate_label(label: str) -> None:
    """Raise `ValidationError` for a label that would be displayed misleadingly."""
    if hidden := HIDDEN.search(label):
        raise ValidationError(
            f"A label is one line without control characters or any that hide text: U+{ord(hidden[0]):04X} is one.",
            code="label",
        )


def is_name(name: str) -> bool:
    """Return whether `name` can name an event type, a publisher or a subscriber."""
    return len(name) <= MAX_NAME_LENGTH and bool(_NAME.fullmatch(name))


def is_own(name: str) -> bool:
    """Return whether `name` is the name of one of the broker's own event types."""
    return name.startswith(OWN_EVENTS)


class NameConverter(StringConverter):
    """A name in a path, `<name:name>`; anything else is 404 without a query."""

    regex = f"{FIRST}{FURTHER}{{0,{MAX_NAME_LENGTH - 1}}}"


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
    """Return the patterns that match a TOPIC event type: for `A.B` that is `A.*` and, unless it is our own, `*`."""
    below = tuple(name[:place] + BELOW for place, letter in enumerate(name) if letter == ".")
    return below if is_own(name) else (EVERYTHING, *below)


def _refused(text: str) -> ValidationError:
    return ValidationError(text, code="event_pattern")
