"""What the scopes of a key allow, and which scopes a key may pass on."""

import datetime as dt
from typing import Any, Final

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.test import Client, RequestFactory
from django.urls import URLPattern, URLResolver, get_resolver
from django.utils import timezone
from rest_framework.views import APIView

from subscriptions.api.permissions import KeyPermission, ReadOrWrite, needed_scope
from subscriptions.credentials.scopes import OPENED
from subscriptions.models import ApiKey, KeyKind, Scope
from tests.support import factories
from tests.support.api import Answer, api_document, client_of, client_with, problem_of

pytestmark = [pytest.mark.django_db, pytest.mark.behaviour("1.2")]

API_ROOT: Final = "/api/v1/"
DOCUMENT: Final = api_document()["paths"]
LOOKING: Final = (KeyPermission, ReadOrWrite)
BY_TOKEN: Final = {"post callbacks/{token}"}
API_KEYS: Final = "/api/v1/api-keys"


HOUR: Final = dt.timedelta(hours=1)
SOON: Final = (timezone.now() + 24 * HOUR).replace(microsecond=0)

TABLE: Final[dict[Scope, str]] = {
    Scope.PUBLISH: "post events, post events/{event_type}, post events/{event_type}/dry-run",
    Scope.READ: """
        get callbacks, get callbacks/{id}, get dead-letters, get dead-letters/counts, get deliveries,
        get deliveries/{id}, get deliveries/{id}/attempts/{number}, get event-type-file,
        get event-types, get event-types/{name}, post filters/test,
        get mailboxes/{name}/status, get messages, get messages/{id}, get messages/{id}/explanation, get publishers,
        get publishers/{name}, get replays, get replays/{id}, get retry-policies, get retry-policies/{name},
        post scripts/test, get senders, get subscribers, get subscribers/{name}, get subscribers/{name}/line,
        get subscribers/{name}/statistics,
        get subscriptions, get subscriptions/{id}, post subscriptions/{id}/test-filter,
        post subscriptions/{id}/test-script, get summaries, get summaries/{name}, get summaries/{name}.{suffix},
        get summary-runs, get summary-runs/{id}, get metrics
    """,
    Scope.CONFIGURE: """
        post event-type-file, post event-types, patch event-types/{name}, delete event-types/{name}, post publishers,
        patch publishers/{name}, delete publishers/{name}, post retry-policies, patch retry-policies/{name},
        delete retry-policies/{name}, post subscribers, patch subscribers/{name}, delete subscribers/{name},
        post subscribers/{name}/activate, post subscribers/{name}/inactivate, post subscriptions,
        patch subscriptions/{id}, delete subscriptions/{id}, post subscriptions/{id}/activate,
        post subscriptions/{id}/inactivate, post subscriptions/{id}/rotate-secret,
        post subscriptions/{id}/end-overlap, post subscriptions/{id}/backfill
    """,
    Scope.RECEIVE: """
        post mailboxes/{name}/next, post mailboxes/{name}/ack, post mailboxes/{name}/nack, post mailboxes/{name}/extend,
        post mailboxes/{name}/purge
    """,
    Scope.OPERATE: """
        post deliveries/{id}/release, post deliveries/{id}/resubmit, post deliveries/{id}/try-now,
         post messages/{id}/resubmit, post replays,
        post replays/{id}/cancel, post subscribers/{name}/pause, post subscribers/{name}/resume,
        post subscriptions/{id}/cancel-deliveries, post subscriptions/{id}/pause,
        post subscriptions/{id}/resume, post subscriptions/{id}/send-test-event, post summary-runs,
        post summary-runs/{id}/cancel
    """,
    Scope.KEYS: """
        get api-keys, post api-keys, get api-keys/{id}, post api-keys/{id}/revoke, post api-keys/{id}/rotate,
        post subscribers/{name}/portal-links
    """,
}
"""Which operations take which scope, as docs/reference/api-keys.md says it in words."""
WANTED: Final = {operation.strip(): scope for scope, text in TABLE.items() for operation in text.split(",")}

DOCUMENTED: Final = {
    f"{method} {path.removeprefix(API_ROOT)}": operation["security"][0]["apiKey"][0]
    for path, operations in DOCUMENT.items()
    for method, operation in operations.items()
    if "security" in operation
}


def ask(token: str, operation: str) -> Answer:
    """Call an operation on what is not there, with a body that says nothing."""
    method, path = operation.split()
    for name, value in {
        "{id}": "4711",
        "{number}": "1",
        "{name}": "nobody",
        "{event_type}": "No.Such",
        "{suffix}": "csv",
    }.items():
        path = path.replace(name, value)
    body = "" if method == "get" else "{}"
    return client_with(token).generic(method.upper(), API_ROOT + path, body, "application/json")


def test_the_table_has_every_operation_of_the_document() -> None:
    assert {operation: str(scope) for operation, scope in WANTED.items()} == DOCUMENTED
    everything = {
        f"{method} {path.removeprefix(API_ROOT)}" for path, operations in DOCUMENT.items() for method in operations
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
        (KeyKind.PUBLISHER, "get api-keys", "This takes a management key."),
        (KeyKind.SUBSCRIBER, "post events", "This takes a publisher's key or a management key."),
        (KeyKind.SUBSCRIBER, "patch subscribers/{name}", "This takes a management key."),
        (KeyKind.SUBSCRIBER, "get summaries", "This takes a management key."),
        (KeyKind.SUBSCRIBER, "get api-keys", "This takes a management key."),
    ],
)
def test_the_error_names_the_kinds_of_key_that_may_call(kind: KeyKind, operation: str, told: str) -> None:
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


def test_a_view_without_scopes_is_an_error() -> None:
    class Careless(APIView):
        permission_classes = [KeyPermission]  # noqa: RUF012

        def get(self, request: object) -> None:
            """Answer nothing."""

    request = RequestFactory().get("/", headers={"Authorization": f"Bearer {factories.api_key()[1]}"})
    with pytest.raises(ImproperlyConfigured, match=r"Careless does not say in `needs` which scope GET takes\."):
        Careless.as_view()(request)


@pytest.mark.parametrize("method", ["PUT", "PATCH", "OPTIONS", "TRACE"])
def test_methods_that_a_view_lacks_need_no_scope(method: str) -> None:
    _, token = factories.api_key(scopes=[Scope.PUBLISH])
    assert client_with(token).generic(method, f"{API_ROOT}deliveries").status_code == 405
    view = APIView()
    assert needed_scope(view, method) is None


def test_head_needs_the_scope_of_get() -> None:
    _, token = factories.api_key(scopes=[Scope.PUBLISH])
    assert client_with(token).head(f"{API_ROOT}deliveries").status_code == 403
    assert client_of().head(f"{API_ROOT}deliveries").status_code == 200


def issued(token: str, **asked: object) -> Answer:
    return client_with(token).post(API_KEYS, {"kind": "MANAGEMENT", **asked})


@pytest.mark.parametrize(
    ("own", "asked", "status"),
    [
        (["keys"], ["keys"], 201),
        (["keys"], ["read"], 403),
        (["keys"], None, 403),
        (["keys", "read"], ["keys", "read"], 201),
        (["keys", "read"], ["keys", "read", "configure"], 403),
        (["publish", "read", "configure", "receive", "operate"], ["read"], 403),
        ([*Scope.values], None, 201),
    ],
)
def test_a_key_issues_none_that_opens_more(own: list[str], asked: list[str] | None, status: int) -> None:
    _, token = factories.api_key(scopes=own)
    answer = issued(token, **({} if asked is None else {"scopes": asked}))
    assert answer.status_code == status
    assert ApiKey.objects.count() == (2 if status == 201 else 1)


@pytest.mark.parametrize(
    ("own", "beyond", "within"),
    [
        ({}, [{"scopes": [*Scope]}], {}),
        ({"expires_at": SOON}, [{}, {"expires_at": SOON}], {"expires_at": SOON - 13 * HOUR}),
        ({"requests_per_minute": 5}, [{}, {"requests_per_minute": 6}], {"requests_per_minute": 5}),
    ],
    ids=["scopes", "end", "rate limit"],
)
def test_a_key_rotates_none_that_opens_more(own: dict[str, Any], beyond: list[dict[str, Any]], within: Any) -> None:
    narrow: dict[str, Any] = {"scopes": ["keys"]}
    client = client_with(factories.api_key(**narrow | own)[1])
    for key, _ in [factories.api_key(**narrow | fields) for fields in beyond]:
        assert problem_of(client.post(f"{API_KEYS}/{key.pk}/rotate")) == (403, "beyond_issuer")
        key.refresh_from_db()
        assert key.retires_at is None
        assert client.post(f"{API_KEYS}/{key.pk}/revoke").status_code == 200, "that opens nothing"
    former, _ = factories.api_key(**narrow | within)
    successor = client.post(f"{API_KEYS}/{former.pk}/rotate")
    assert (successor.status_code, successor.json()["requests_per_minute"]) == (201, within.get("requests_per_minute"))


def test_by_default_a_key_has_all_scopes_but_keys(management: Client) -> None:
    factories.publisher("till")
    factories.subscriber("shop")
    owners = {"PUBLISHER": {"publisher": "till"}, "SUBSCRIBER": {"subscriber": "shop"}, "MANAGEMENT": {}}
    answers = [management.post(API_KEYS, {"kind": kind, **owner}) for kind, owner in owners.items()]
    of_publisher, of_subscriber, of_management = (answer.json()["scopes"] for answer in answers)
    assert of_publisher == ["publish", "read", "operate"]
    assert of_subscriber == ["read", "configure", "receive", "operate"]
    assert of_management == ["publish", "read", "configure", "receive", "operate"]


@pytest.mark.parametrize(
    "scopes", [[], ["root"], ["keys"], ["publish", "configure"], "publish", None, [None], {"publish": True}]
)
def test_scopes_of_another_kind_are_refused(scopes: object) -> None:
    factories.publisher("till")
    before = (client := client_of()) and ApiKey.objects.count()
    answer = client.post(API_KEYS, {"kind": "PUBLISHER", "publisher": "till", "scopes": scopes})
    assert (answer.status_code, answer.json()["errors"][0]["pointer"][:8]) == (400, "#/scopes")
    assert ApiKey.objects.count() == before


def test_scopes_are_shown_once_each_in_a_fixed_order() -> None:
    answer = client_of().post(API_KEYS, {"kind": "MANAGEMENT", "scopes": ["read", "publish", "read"]})
    assert answer.json()["scopes"] == ["publish", "read"]


def test_the_issuer_of_a_key_is_recorded() -> None:
    key, token = factories.api_key()
    assert issued(token).json()["issued_by"] == f"key {key.prefix}…"


@pytest.mark.parametrize(("hours", "status"), [(None, 403), (2, 403), (1, 201), (0.5, 201)])
def test_a_key_issues_none_that_outlives_it(hours: float | None, status: int) -> None:
    now = timezone.now()
    _, token = factories.api_key(scopes=["keys"], expires_at=now + HOUR)
    answer = issued(token, scopes=["keys"], expires_at=hours and (now + hours * HOUR).isoformat())
    assert answer.status_code == status
    assert ApiKey.objects.count() == (2 if status == 201 else 1)


@pytest.mark.parametrize(
    ("own", "asked", "detail"),
    [
        (
            {"scopes": ["keys", "read"]},
            {"kind": "PUBLISHER", "publisher": "till"},
            "An issuer cannot pass on a scope that it does not have: publish, operate.",
        ),
        ({"expires_at": SOON}, {}, f"A key ends no later than the one that issues it, at {SOON.isoformat()}."),
        ({"requests_per_minute": 5}, {}, "A key may send no more than the one that issues it: 5 requests a minute."),
    ],
    ids=["scopes", "end", "rate limit"],
)
def test_the_error_says_what_may_be_passed_on(own: dict[str, Any], asked: dict[str, Any], detail: str) -> None:
    factories.publisher("till")
    _, token = factories.api_key(**{"scopes": ["keys"], **own})
    head = {"type": "/api/docs/problems#beyond_issuer", "code": "beyond_issuer", "title": "Beyond the issuer"}
    refused = issued(token, **asked or {"scopes": ["keys"]})
    assert refused.json() == {**head, "status": 403, "detail": detail}


@pytest.mark.parametrize(
    ("own", "default", "asked", "status"),
    [
        (5, 0, None, 403),
        (5, 0, 100_000, 403),
        (5, 0, 6, 403),
        (5, 0, 5, 201),
        (5, 0, 1, 201),
        (None, 0, None, 201),
        (None, 0, 100_000, 201),
        (None, 600, None, 201),
        (None, 600, 601, 403),
        (None, 600, 600, 201),
        (5, 5, None, 201),
        (5, 6, None, 403),
        (1_000, 600, 1_000, 201),
    ],
)
def test_no_issued_key_sends_more(own: int | None, default: int, asked: int | None, status: int, settings: Any) -> None:
    settings.REQUESTS_PER_MINUTE = default
    _, token = factories.api_key(scopes=["keys"], requests_per_minute=own)
    answer = issued(token, scopes=["keys"], requests_per_minute=asked)
    assert answer.status_code == status
    assert ApiKey.objects.count() == (2 if status == 201 else 1)
