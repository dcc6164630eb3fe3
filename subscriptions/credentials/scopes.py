"""What API keys open: their kinds, the scopes that narrow them, and what may be passed on from one to the next."""

import datetime as dt
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, TypeVar

from django.db.models import TextChoices

Bound = TypeVar("Bound", int, dt.datetime)


class KeyKind(TextChoices):
    """Whose a key is, and so what there is for it (contract 1.2)."""

    PUBLISHER = "PUBLISHER"
    """Publishes, and reads its publisher's messages."""

    SUBSCRIBER = "SUBSCRIBER"
    """Reads and changes its subscriber's subscriptions, deliveries and mailbox."""

    MANAGEMENT = "MANAGEMENT"
    """Everything."""


class Scope(TextChoices):
    """One part of what a kind of key opens."""

    PUBLISH = "publish"
    """Publishing events."""

    READ = "read"
    """Seeing what the key's owner may see, and trying filters and scripts on it."""

    CONFIGURE = "configure"
    """Creating, changing and deleting what is configured, signing secrets included."""

    RECEIVE = "receive"
    """Emptying a mailbox: fetching, acknowledging, returning, prolonging, purging."""

    OPERATE = "operate"
    """Stepping in: resubmitting, replaying, pausing, resuming, cancelling, releasing, summarizing."""

    KEYS = "keys"
    """Listing, issuing, rotating and revoking API keys."""


OPENED: Final[Mapping[KeyKind, tuple[Scope, ...]]] = {
    KeyKind.PUBLISHER: (Scope.PUBLISH, Scope.READ, Scope.OPERATE),
    KeyKind.SUBSCRIBER: (Scope.READ, Scope.CONFIGURE, Scope.RECEIVE, Scope.OPERATE),
    KeyKind.MANAGEMENT: tuple(Scope),
}
"""The scopes that there are for each kind."""


class BeyondIssuer(Exception):
    """A key would open more than whoever issues it may pass on, for longer, or send more."""


class NotOpened(ValueError):
    """A kind of key has no such scope."""


def scopes_of(kind: KeyKind, asked: Collection[str] | None) -> list[Scope]:
    """Return the scopes of a new key, each once: those asked for, or all of its kind but `keys`.

    Raises:
        NotOpened: its kind has not all of them, or none are asked for.

    """
    if asked is None:
        return [scope for scope in OPENED[kind] if scope != Scope.KEYS]
    if not asked or not set(asked) <= set(OPENED[kind]):
        raise NotOpened(f"A {kind} key has one or more of the scopes {', '.join(OPENED[kind])}.")
    return [scope for scope in OPENED[kind] if scope in asked]


@dataclass(frozen=True, slots=True)
class Issuer:
    """Somebody who issues and rotates keys, and what may be passed on: nobody gives more than they have."""

    name: str
    kinds: frozenset[KeyKind] = frozenset(KeyKind)
    scopes: frozenset[Scope] = frozenset(Scope)
    ends_at: dt.datetime | None = None
    """When they can issue no more; None: never."""
    requests_per_minute: int | None = None
    """How many they may send; None: any number."""
    requests_by_default: int = 0
    """How many a key may send that has no limit of its own; 0: any number."""

    def check(
        self, kind: str, scopes: Iterable[str], *, until: dt.datetime | None, requests_per_minute: int | None
    ) -> None:
        """Raise `BeyondIssuer` for a key that opens more, for longer, or with this limit may send more."""
        if kind not in self.kinds:
            raise BeyondIssuer(f"Keys of kind {kind} are issued and rotated by others only.")
        if missing := [scope for scope in scopes if scope not in self.scopes]:
            raise BeyondIssuer(f"Nobody passes on a scope that they have not: {', '.join(missing)}.")
        if self.ends_at and is_beyond(until, self.ends_at):
            raise BeyondIssuer(f"A key ends no later than the one that issues it, at {self.ends_at.isoformat()}.")
        if is_beyond(requests_in_force(requests_per_minute, self.requests_by_default), self.requests_per_minute):
            raise BeyondIssuer(
                f"A key may send no more than the one that issues it: {self.requests_per_minute} requests a minute."
            )


def requests_in_force(own: int | None, by_default: int) -> int | None:
    """Return how many requests a minute a key with this limit may send; None: any number.

    Without a limit of its own the broker's counts, as it is now; 0 is none.
    """
    return own or by_default or None


def is_beyond(bound: Bound | None, than: Bound | None) -> bool:
    """Tell whether a bound lets more through than another; None: everything."""
    return than is not None and (bound is None or bound > than)
