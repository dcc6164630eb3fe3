"""What the scopes of a key open: every operation, with a key that lacks its scope and with one that has it."""

from typing import Final

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.test import RequestFactory
from django.urls import URLPattern, URLResolver, get_resolver
from rest_framework.views import APIView

from subscriptions.api.permissions import AnyKey, KeyPermission, needed_by
from subscriptions.api.resources import ReadOrWrite
from subscriptions.credentials.scopes import OPENED
from subscriptions.models import KeyKind, Scope
from tests import factories
from tests.clients import Answer, api_document, client_of, client_with

pytestmark = [pytest.mark.django_db, pytest.mark.behaviour("1.2")]

ROOT: Final = "/api/v1/"
TABLE: Final[dict[Scope, str]] = {
    Scope.PUBLISH: "post events, post events/{event_type}",
    Scope.READ: """
        get callbacks, get callbacks/{id}, get dead-letters, get dead-letters/counts, get deliveries,
        get deliveries/{id}, get event-type-file, get event-types, get event-types/{name}, post filters/test,
        get mailboxes/{name}/status, get messages, get messages/{id}, get messages/{id}/explanation, get publishers,
        get publishers/{name}, get replays, get replays/{id}, get retry-policies, get retry-policies/{name},
        post scripts/test, get senders, get subscribers, get subscribers/{name}, get subscribers/{name}/line,
        get subscriptions, get subscriptions/{id}, post subscriptions/{id}/test-filter,
        post subscriptions/{id}/test-script, get summaries, get summaries/{name}, get summaries/{name}.{suffix},
        get summary-runs, get summary-runs/{id}
    """,
    Scope.CONFIGURE: """
        post event-type-file, post event-types, patch event-types/{name}, delete event-types/{name}, post publishers,
        patch publishers/{name}, delete publishers/{name}, post retry-policies, patch retry-policies/{name},
        delete retry-policies/{name}, post subscribers, patch subscribers/{name}, delete subscribers/{name},
        post subscribers/{name}/activate, post subscribers/{name}/inactivate, post subscriptions,
        patch subscriptions/{id}, delete subscriptions/{id}, post subscriptions/{id}/activate,
        post subscriptions/{id}/inactivate, post subscriptions/{id}/rotate-secret,
        post subscriptions/{id}/end-overlap
    """,
    Scope.RECEIVE: """
        post mailboxes/{name}/next, post mailboxes/{name}/ack, post mailboxes/{name}/nack, post mailboxes/{name}/extend,
        post mailboxes/{name}/purge
    """,
    Scope.OPERATE: """
        post deliveries/{id}/release, post deliveries/{id}/resubmit, post messages/{id}/resubmit, post replays,
        post replays/{id}/cancel, post subscribers/{name}/pause, post subscribers/{name}/resume,
        post subscriptions/{id}/backfill, post subscriptions/{id}/cancel-deliveries, post subscriptions/{id}/pause,
        post subscriptions/{id}/resume, post subscriptions/{id}/send-test-event, post summary-runs
    """,
    Scope.KEYS: """
        get api-keys, post api-keys, get api-keys/{id}, post api-keys/{id}/revoke, post api-keys/{id}/rotate
    """,
}
"""Which operations take which scope, as docs/reference/api-keys.md says it in words."""
WANTED: Final = {operation.strip(): scope for scope, text in TABLE.items() for operation in text.split(",")}
DOCUMENT: Final = api_document()["paths"]
DOCUMENTED: Final = {
    f"{method} {path.removeprefix(ROOT)}": operation["security"][0]["apiKey"][0]
    for path, operations in DOCUMENT.items()
    for method, operation in operations.items()
    if "security" in operation
}
LOOKING: Final = (KeyPermission, ReadOrWrite)
BY_TOKEN: Final = {"post callbacks/{token}"}


def ask(token: str, operation: str) -> Answer:
    """Call an operation on what is not there, with a body that says nothing."""
    method, path = operation.split()
    for name, value in {"{id}": "4711", "{name}": "nobody", "{event_type}": "No.Such", "{suffix}": "csv"}.items():
        path = path.replace(name, value)
    body = "" if method == "get" else "{}"
    return client_with(token).generic(method.upper(), ROOT + path, body, "application/json")


def test_the_table_has_every_operation_and_says_what_the_document_says() -> None:
    assert {operation: str(scope) for operation, scope in WANTED.items()} == DOCUMENTED
    everything = {
        f"{method} {path.removeprefix(ROOT)}" for path, operations in DOCUMENT.items() for method in operations
    }
    assert everything - DOCUMENTED.keys() == BY_TOKEN


@pytest.mark.parametrize("operation", sorted(WANTED))
def test_an_operation_opens_to_its_scope_and_to_no_other(operation: str) -> None:
    needed = WANTED[operation]
    _, without = factories.api_key(scopes=[scope for scope in Scope if scope != needed])
    _, alone = factories.api_key(scopes=[needed])
    refused = ask(without, operation)
    assert (refused.status_code, refused.json()["code"], refused.json()["scope"]) == (403, "missing_scope", needed)
    assert refused["WWW-Authenticate"] == f'Bearer error="insufficient_scope", scope="{needed}"'
    assert ask(alone, operation).status_code not in {401, 403}


@pytest.mark.parametrize("kind", [KeyKind.PUBLISHER, KeyKind.SUBSCRIBER])
def test_keys_of_owners_are_narrowed_likewise(kind: KeyKind) -> None:
    owner = factories.publisher() if kind == KeyKind.PUBLISHER else factories.subscriber()
    by_kind = {scope: factories.api_key(owner, scopes=[scope])[1] for scope in OPENED[kind]}
    _, whole = factories.api_key(owner)
    for operation, needed in WANTED.items():
        is_open = ask(whole, operation).status_code != 403
        opening = {scope for scope, token in by_kind.items() if ask(token, operation).status_code != 403}
        assert opening == ({needed} if is_open else set()), operation


@pytest.mark.parametrize(
    ("kind", "operation", "told"),
    [
        (KeyKind.PUBLISHER, "post event-types", "This takes a management key."),
        (KeyKind.PUBLISHER, "post subscriptions", "This takes a subscriber's key or a management key."),
        (KeyKind.PUBLISHER, "get deliveries", "This takes a subscriber's key or a management key."),
        (KeyKind.SUBSCRIBER, "post events", "This takes a publisher's key or a management key."),
        (KeyKind.SUBSCRIBER, "patch subscribers/{name}", "This takes a management key."),
        (KeyKind.SUBSCRIBER, "get summaries", "This takes a management key."),
        (KeyKind.SUBSCRIBER, "get api-keys", "This takes a management key."),
    ],
)
def test_a_key_of_another_kind_is_told_whose_are_taken(kind: KeyKind, operation: str, told: str) -> None:
    owner = factories.publisher("nobody") if kind == KeyKind.PUBLISHER else factories.subscriber("nobody")
    refused = ask(factories.api_key(owner)[1], operation)
    assert (refused.status_code, refused.json()["code"], refused.json()["detail"]) == (403, "forbidden", told)


def views(resolver: URLResolver | None = None) -> list[type[APIView]]:
    """Return the classes of all views that are served by DRF."""
    found: list[type[APIView]] = []
    for one in (resolver or get_resolver()).url_patterns:
        if isinstance(one, URLResolver):
            found += views(one)
        elif isinstance(one, URLPattern) and hasattr(one.callback, "cls"):
            found.append(one.callback.cls)
    return found


def test_no_view_forgets_to_look_at_scopes() -> None:
    ours = {view for view in views() if not view.__module__.startswith("drf_spectacular")}
    careless = {
        view.__name__
        for view in ours
        if not any(isinstance(one, type) and issubclass(one, LOOKING) for one in view.permission_classes)
    }
    assert careless == {"Reply"}, "whose address is the key"


def test_a_view_that_does_not_say_what_it_takes_serves_nobody() -> None:
    class Careless(APIView):
        permission_classes = [AnyKey]  # noqa: RUF012

        def get(self, request: object) -> None:
            """Answer nothing."""

    request = RequestFactory().get("/", headers={"Authorization": f"Bearer {factories.api_key()[1]}"})
    with pytest.raises(ImproperlyConfigured, match=r"Careless does not say in `needs` which scope GET takes\."):
        Careless.as_view()(request)


@pytest.mark.parametrize("method", ["PUT", "PATCH", "OPTIONS", "TRACE"])
def test_what_a_view_has_not_is_no_matter_of_scopes(method: str) -> None:
    _, token = factories.api_key(scopes=[Scope.PUBLISH])
    assert client_with(token).generic(method, f"{ROOT}deliveries").status_code == 405
    view = APIView()
    assert needed_by(view, method) is None


def test_head_takes_what_get_takes() -> None:
    _, token = factories.api_key(scopes=[Scope.PUBLISH])
    assert client_with(token).head(f"{ROOT}deliveries").status_code == 403
    assert client_of().head(f"{ROOT}deliveries").status_code == 200
