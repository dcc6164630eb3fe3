"""Which kinds of key open which views, and with which scope (contract 1.2); which objects, `visibility` says.

A view declares in `needs` the scope that each of its methods takes; without that it serves nobody.
"""

from collections.abc import Collection, Mapping
from typing import Any, ClassVar, Final

from django.core.exceptions import ImproperlyConfigured
from rest_framework.exceptions import PermissionDenied
from rest_framework.permissions import BasePermission
from rest_framework.request import Request

from broker_project.core.api.problems import ProblemType, register
from subscriptions.models import ApiKey, KeyKind, Scope

Needs = Mapping[str, Scope]
"""The scope that a call takes, by its method in lower case; HEAD takes what GET does."""

CALLED: Final[Mapping[KeyKind, str]] = {
    KeyKind.PUBLISHER: "a publisher's key",
    KeyKind.SUBSCRIBER: "a subscriber's key",
    KeyKind.MANAGEMENT: "a management key",
}


class MissingScope(PermissionDenied):
    """The key has not the scope that the call takes."""

    def __init__(self, scope: Scope) -> None:
        super().__init__(f"This takes a key with the scope {scope}.")
        self.scope = scope
        self.auth_header = f'Bearer error="insufficient_scope", scope="{scope}"'  # RFC 6750


register(
    {MissingScope: ProblemType(403, "missing_scope", "Missing scope", members=lambda error: {"scope": error.scope})}
)


def kinds_taken(kinds: Collection[KeyKind]) -> str:
    """Return what a key of any other kind is told."""
    return f"This takes {' or '.join(name for kind, name in CALLED.items() if kind in kinds)}."


def key_of(request: Request) -> ApiKey:
    """Return the key of an authenticated request."""
    key = request.auth
    if not isinstance(key, ApiKey):
        raise TypeError("Only views that refuse requests without a key may ask for it.")
    return key


def check_scope(key: ApiKey, request: Request, view: Any) -> None:
    """Raise `MissingScope` where the key has not the scope that the call takes."""
    needed = needed_by(view, request.method or "")
    if needed is not None and needed not in key.scopes:
        raise MissingScope(needed)


def needed_by(view: Any, method: str) -> Scope | None:
    """Return the scope that a call takes; None of a method that the view has not, so that nothing is done.

    Raises:
        ImproperlyConfigured: the view does not say.

    """
    name = "get" if method == "HEAD" else method.lower()
    if name == "options" or name not in view.http_method_names or not hasattr(view, name):
        return None
    needs: Needs = getattr(view, "needs", {})
    if name not in needs:
        raise ImproperlyConfigured(f"{type(view).__name__} does not say in `needs` which scope {method} takes.")
    return needs[name]


class KeyPermission(BasePermission):
    """Opens a view to some kinds of key: 401 without a key, 403 with another kind, or without the scope."""

    kinds: ClassVar[frozenset[KeyKind]] = frozenset(KeyKind)

    @property
    def message(self) -> str:
        """What a key of another kind is told."""
        return kinds_taken(self.kinds)

    def has_permission(self, request: Request, view: Any) -> bool:
        """Tell whether the request's key is of one of the kinds; raise `MissingScope` where it is narrower."""
        key = request.auth
        if not isinstance(key, ApiKey) or key.kind not in self.kinds:
            return False
        check_scope(key, request, view)
        return True


class AnyKey(KeyPermission):
    """Any usable key."""


class MayManage(KeyPermission):
    """Management keys."""

    kinds = frozenset({KeyKind.MANAGEMENT})


class MayPublish(KeyPermission):
    """Publisher and management keys."""

    kinds = frozenset({KeyKind.PUBLISHER, KeyKind.MANAGEMENT})


class MayReceive(KeyPermission):
    """Subscriber and management keys."""

    kinds = frozenset({KeyKind.SUBSCRIBER, KeyKind.MANAGEMENT})
