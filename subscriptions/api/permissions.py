"""What a key may do (contract 1.2): which kinds of key and which scopes a view takes, and which records a key sees.

A view declares in `needs` the scope that each of its methods takes. A view without it serves nobody.
"""

from collections.abc import Callable, Collection, Mapping
from typing import Any, ClassVar, Final, TypeVar

from django.core.exceptions import ImproperlyConfigured
from django.db.models import Model, QuerySet
from rest_framework import serializers
from rest_framework.exceptions import PermissionDenied
from rest_framework.permissions import BasePermission
from rest_framework.request import Request

from broker_project.core.api.fields import IDS, NameField, WholeNumberField
from broker_project.core.api.problems import ProblemType, register
from subscriptions.models import ApiKey, KeyKind, Publisher, Scope, Subscriber, Subscription

Record = TypeVar("Record", bound=Model)

Needs = Mapping[str, Scope]
"""The scope that a call takes, by its method in lower case; HEAD takes what GET does."""

KIND_NAMES: Final[Mapping[KeyKind, str]] = {
    KeyKind.PUBLISHER: "a publisher's key",
    KeyKind.SUBSCRIBER: "a subscriber's key",
    KeyKind.MANAGEMENT: "a management key",
}


class MissingScope(PermissionDenied):
    """The key lacks the scope that the call takes."""

    def __init__(self, scope: Scope) -> None:
        super().__init__(f"This takes a key with the scope {scope}.")
        self.scope = scope
        self.auth_header = f'Bearer error="insufficient_scope", scope="{scope}"'  # RFC 6750


register({MissingScope: ProblemType(403, "missing_scope", members=lambda error: {"scope": error.scope})})


def key_of(request: Request) -> ApiKey:
    """Return the key of an authenticated request."""
    key = request.auth
    if not isinstance(key, ApiKey):
        raise TypeError("Only views that refuse requests without a key may ask for it.")
    return key


def needed_scope(view: Any, method: str) -> Scope | None:
    """Return the scope that a call takes, None for an unknown method; raise `ImproperlyConfigured` if not declared."""
    name = "get" if method == "HEAD" else method.lower()
    if name == "options" or name not in view.http_method_names or not hasattr(view, name):
        return None
    needs: Needs = getattr(view, "needs", {})
    if name not in needs:
        raise ImproperlyConfigured(f"{type(view).__name__} does not say in `needs` which scope {method} takes.")
    return needs[name]


def _check_scope(key: ApiKey, request: Request, view: Any) -> None:
    needed = needed_scope(view, request.method or "")
    if needed is not None:
        require_scope(key, needed)


def require_scope(key: ApiKey, scope: Scope) -> None:
    """Raise `MissingScope` if the key lacks a scope."""
    if scope not in key.scopes:
        raise MissingScope(scope)


def _message(kinds: Collection[KeyKind]) -> str:
    """Return the error for keys of other kinds."""
    return f"This takes {' or '.join(name for kind, name in KIND_NAMES.items() if kind in kinds)}."


class KeyPermission(BasePermission):
    """Opens a view to all or some kinds of key: 401 without a key, 403 for another kind, or without the scope."""

    kinds: ClassVar[frozenset[KeyKind]] = frozenset(KeyKind)

    @property
    def message(self) -> str:
        """The error for keys of other kinds."""
        return _message(self.kinds)

    def has_permission(self, request: Request, view: Any) -> bool:
        """Tell whether the request's key is of one of the kinds; raise `MissingScope` if it lacks the scope."""
        key = request.auth
        if not isinstance(key, ApiKey) or key.kind not in self.kinds:
            return False
        _check_scope(key, request, view)
        return True


class MayManage(KeyPermission):
    """Management keys."""

    kinds = frozenset({KeyKind.MANAGEMENT})


class MayPublish(KeyPermission):
    """Publisher and management keys."""

    kinds = frozenset({KeyKind.PUBLISHER, KeyKind.MANAGEMENT})


class MayReceive(KeyPermission):
    """Subscriber and management keys."""

    kinds = frozenset({KeyKind.SUBSCRIBER, KeyKind.MANAGEMENT})


class ReadOrWrite(BasePermission):
    """Every key reads the records that it sees, the view's `writers` change them. Invisible is 404, not 403."""

    def has_permission(self, request: Request, view: Any) -> bool:
        """Tell whether there is a key; raise `PermissionDenied` if it may not use the view at all."""
        key = request.auth
        if not isinstance(key, ApiKey):
            return False
        if view.action == "create":
            self._check_kind(key, view)
        _check_scope(key, request, view)
        return True

    def has_object_permission(self, request: Request, view: Any, obj: Any) -> bool:  # noqa: ARG002 - DRF's signature
        """Allow reading; raise `PermissionDenied` if keys of this kind may not change the record."""
        if view.action != "retrieve":
            self._check_kind(key_of(request), view)
        return True

    def _check_kind(self, key: ApiKey, view: Any) -> None:
        if key.kind not in view.writers:
            raise PermissionDenied(_message(view.writers))


def records_of(rows: QuerySet[Record], column: str, owner: str) -> Callable[[ApiKey], QuerySet[Record]]:
    """Declare which of `rows` a key sees: management all, other keys those whose `column` is the key's `owner`."""

    def visible(key: ApiKey) -> QuerySet[Record]:
        return rows.all() if key.kind == KeyKind.MANAGEMENT else rows.filter(**{column: getattr(key, owner)})

    return visible


publishers_for = records_of(Publisher.objects.all(), "pk", "publisher_id")
subscribers_for = records_of(Subscriber.objects.all(), "pk", "subscriber_id")
subscriptions_for = records_of(Subscription.objects.all(), "subscriber", "subscriber_id")


class OwnSubscriberField(NameField[Subscriber]):
    """A subscriber that the request's key sees, by its name."""

    def get_queryset(self) -> QuerySet[Subscriber]:
        """Return the subscribers that the key sees."""
        return subscribers_for(key_of(self.context["request"]))


class OwnSubscriptionField(serializers.PrimaryKeyRelatedField[Subscription]):
    """A subscription that the request's key sees, by its id."""

    def __init__(self, **options: Any) -> None:
        super().__init__(pk_field=WholeNumberField(**IDS), queryset=Subscription.objects.all(), **options)

    def get_queryset(self) -> QuerySet[Subscription]:
        """Return the subscriptions that the key sees."""
        return subscriptions_for(key_of(self.context["request"]))
