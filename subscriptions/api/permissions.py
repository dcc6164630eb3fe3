"""Which kinds of key open which views (behaviour 1.2); which objects of a view, `scopes` says."""

from typing import ClassVar

from rest_framework.permissions import BasePermission
from rest_framework.request import Request
from rest_framework.views import APIView

from subscriptions.models import ApiKey, KeyKind


def key_of(request: Request) -> ApiKey:
    """Return the key of an authenticated request."""
    key = request.auth
    if not isinstance(key, ApiKey):
        raise TypeError("Only views that refuse requests without a key may ask for it.")
    return key


class KeyPermission(BasePermission):
    """Opens a view to some kinds of key: 401 without a key, 403 with another kind."""

    kinds: ClassVar[frozenset[KeyKind]] = frozenset(KeyKind)

    def has_permission(self, request: Request, view: APIView) -> bool:  # noqa: ARG002 - DRF's signature
        """Tell whether the request's key is of one of the kinds."""
        return isinstance(request.auth, ApiKey) and request.auth.kind in self.kinds


class AnyKey(KeyPermission):
    """Any usable key."""


class MayManage(KeyPermission):
    """Management keys."""

    kinds = frozenset({KeyKind.MANAGEMENT})
    message = "This takes a management key."


class MayPublish(KeyPermission):
    """Publisher and management keys."""

    kinds = frozenset({KeyKind.PUBLISHER, KeyKind.MANAGEMENT})
    message = "This takes a publisher's key or a management key."


class MayReceive(KeyPermission):
    """Subscriber and management keys."""

    kinds = frozenset({KeyKind.SUBSCRIBER, KeyKind.MANAGEMENT})
    message = "This takes a subscriber's key or a management key."
