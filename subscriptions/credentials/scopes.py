"""Kinds of API keys, the scopes that narrow them, and what an issuer may pass on."""

import datetime as dt
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, TypeVar

from django.db.models import TextChoices

Bound = TypeVar("Bound", int, dt.datetime)


class KeyKind(TextChoices):
    """The owner of a key, and so what it can open (contract 1.2)."""

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
    """Reading everything that its owner may see, and trying filters and scripts on it."""

    CONFIGURE = "configure"
    """Creating, changing and deleting configuration, including signing secrets."""

    RECEIVE = "receive"
    """Using a mailbox: fetching, acknowledging, returning, extending, purging."""

    OPERATE = "operate"
    """Resubmitting, replaying, pausing, resuming, cancelling, releasing, summarizing."""

    KEYS = "keys"
    """Listing, issuing, rotating and revoking API keys."""


OPENED: Final[Mapping[KeyKind, tuple[Scope, ...]]] = {
    KeyKind.PUBLISHER: (Scope.PUBLISH, Scope.READ, Scope.OPERATE),
    KeyKind.SUBSCRIBER: (Scope.READ, Scope.CONFIGURE, Scope.RECEIVE, Scope.OPERATE),
    KeyKind.MANAGEMENT: tuple(Scope),
}


class BeyondIssuer(Exception):
    """A key would open more than its issuer may pass on, for longer, or send more."""


class NotOpened(ValueError):
    """A kind of key has no such scope."""


def scopes_of(kind: KeyKind, asked: Collection[str] | None) -> list[Scope]:
    """Return the scopes asked for, by default all of the kind except `keys`; raise `NotOpened` for none or others."""
    if asked is None:
        return [scope for scope in OPENED[kind] if scope != Scope.KEYS]
    if not asked or not set(asked) <= set(OPENED[kind]):
        raise NotOpened(f"A {kind} key has one or more of the scopes {', '.join(OPENED[kind])}.")
    return [scope for scope in OPENED[kind] if scope in asked]


def owner_problems(fields: Mapping[str, object]) -> dict[str, str]:
    """Return what is wrong with the owner in the fields of a new key, by field."""
    return {
        name: f"A key of kind {kind} has a {name}; other kinds have none."
        for kind, name in ((KeyKind.PUBLISHER, "publisher"), (KeyKind.SUBSCRIBER, "subscriber"))
        if (fields.get("kind") == kind) != bool(fields.get(name))
    }


@dataclass(frozen=True, slots=True)
class Issuer:
    """A person, key or command that issues and rotates keys, and what it may pass on: no more than it has."""

    name: str
    kinds: frozenset[KeyKind] = frozenset(KeyKind)
    scopes: frozenset[Scope] = frozenset(Scope)
    ends_at: dt.datetime | None = None
    """When it can issue no more; None: never."""
    requests_per_minute: int | None = None
    """Its own limit; None: none."""
    requests_by_default: int = 0
    """The limit of keys without their own; 0: none."""

    def check(
        self, kind: str, scopes: Iterable[str], *, until: dt.datetime | None, requests_per_minute: int | None
    ) -> None:
        """Raise `BeyondIssuer` for a key that opens more, for longer, or with this limit may send more."""
        if kind not in self.kinds:
            raise BeyondIssuer(f"Keys of kind {kind} are issued and rotated by others only.")
        if missing := [scope for scope in scopes if scope not in self.scopes]:
            raise BeyondIssuer(f"An issuer cannot pass on a scope that it does not have: {', '.join(missing)}.")
        if self.ends_at and is_beyond(until, self.ends_at):
            raise BeyondIssuer(f"A key ends no later than the one that issues it, at {self.ends_at.isoformat()}.")
        if is_beyond(effective_limit(requests_per_minute, self.requests_by_default), self.requests_per_minute):
            raise BeyondIssuer(
                f"A key may send no more than the one that issues it: {self.requests_per_minute} requests a minute."
            )


def effective_limit(own: int | None, by_default: int) -> int | None:
    """Return the requests a minute that a key may send: its own limit, else the broker's default; None: any number."""
    return own or by_default or None


def is_beyond(bound: Bound | None, than: Bound | None) -> bool:
    """Return whether a bound lets more through than another; None: everything."""
    return than is not None and (bound is None or bound > than)
