"""Which of a QUEUE message's subscriptions form a group, of which exactly one takes it (behaviour 6.3)."""

from collections.abc import Iterable, Sequence
from typing import Protocol, TypeVar

from subscriptions.filters import FilterSyntaxError, kept_filter


class Qualified(Protocol):
    """A subscription that a message qualifies for, or may qualify for."""

    @property
    def filter(self) -> str:
        """Its filter's text; empty where it has none."""

    @property
    def by_header(self) -> bool:
        """Whether it has a header filter, which is then the message's FILTER_STRING."""

    @property
    def failure(self) -> str:
        """Why its filter could not be evaluated."""


One = TypeVar("One", bound=Qualified)


def groups_of(qualified: Iterable[One]) -> list[list[One]]:
    """Return the groups, in the order of their first subscriptions, of those that one message qualifies for.

    They are for the same event type. Those with the same header filter and the same filter form a group: filters are
    the same if they differ in white space or the case of keywords only.
    """
    groups: dict[tuple[bool, str], list[One]] = {}
    for one in qualified:
        groups.setdefault((one.by_header, _canonical(one.filter)), []).append(one)
    return [*groups.values()]


def failure_of(group: Sequence[Qualified]) -> str:
    """Return why a group is HELD (behaviour 3.6), empty if it is not: what one of like filters says holds for all."""
    return "" if any(not one.failure for one in group) else group[0].failure


def _canonical(text: str) -> str:
    try:
        return kept_filter(text).canonical if text else ""
    except FilterSyntaxError:
        return text
