"""Call the API: clients with keys, published messages, SYNC calls, callbacks."""

import time
from typing import Any

from django.contrib.auth.models import User
from django.test import Client

from broker_project.accounts import sessions
from broker_project.core.db import rows
from delivery.callbacks.address import TOKENS, CallbackTerms, callback_addresses, callback_terms
from delivery.models import Callback, Delivery, Message
from subscriptions.credentials.keys import Owner
from subscriptions.models import EventKind, EventType
from tests.support import factories
from tests.support.factories import api_key

Answer = Any
"""A response as the test client returns it; its own type is not public."""

JSON = "application/json"
EVENT = "Shop.Order.Placed"

SYNC_PATH = "/answers"
"""Where the endpoint is that is asked."""
FAILING_FILTER = "$$->'Body'->'n' > '5'"
FAILING_BODY = b'{"n": 1e200000}'
"""A number with more digits than can be compared."""

JOB_EVENT = "Shop.Invoice.Render"
REPLY_URL = "https://shop.example.org/done?job=7"
RESULT_BODY = b'{"total": 12.50, "total": 12.5}'


class ApiClient(Client):
    """A client whose bodies are JSON, unless a test says otherwise."""

    def post(  # type: ignore[override] # Django declares each of its parameters
        self, path: str, data: Any = None, content_type: str = JSON, *rest: Any, **more: Any
    ) -> Answer:
        return super().post(path, data, content_type, *rest, **more)

    def patch(  # type: ignore[override]
        self, path: str, data: Any = None, content_type: str = JSON, *rest: Any, **more: Any
    ) -> Answer:
        return super().patch(path, data, content_type, *rest, **more)


def client_of(owner: Owner = None) -> Client:
    """Return a client with a key of a publisher, of a subscriber, or of management."""
    return client_with(api_key(owner)[1])


def client_with(token: str) -> Client:
    return ApiClient(headers={"Authorization": f"Bearer {token}"})


def invalid_fields(answer: Answer) -> list[str]:
    """Return the fields, in order of their names, that an answer refuses as invalid."""
    assert answer.status_code == 400
    return sorted(error["pointer"].removeprefix("#/") for error in answer.json()["errors"])


def api_document() -> dict[str, Any]:
    """Return the OpenAPI document, also while tests are collected: then the host of tests is nobody's yet."""
    found: dict[str, Any] = Client(SERVER_NAME="localhost").get("/api/v1/openapi.json").json()
    return found


def client_of_admin() -> Client:
    """Return a browser in which a superuser has just been seen; without a password, since hashing one takes long."""
    client = Client()
    client.force_login(User.objects.create(username="admin", is_staff=True, is_superuser=True))
    session = client.session
    sessions.touch(session, now=time.time())
    session.save()
    return client


def read_pages(client: Client, path: str, query: str = "", *, limit: int = 3) -> list[dict[str, Any]]:
    """Return the items of all pages of a list; assert that the pages are the same when read backwards."""
    url: Any = f"{path}?limit={limit}&{query}"
    back: Any = None
    pages: list[list[dict[str, Any]]] = []
    while url:
        answer = client.get(url).json()
        pages.append(answer["items"])
        url, back = answer["next"], answer["previous"]
    for page in reversed(pages[:-1]):
        answer = client.get(back).json()
        assert answer["items"] == page
        back = answer["previous"]
    return [item for page in pages for item in page]


def publish(
    client: Client, body: bytes = b"{}", content_type: str = JSON, event: str = EVENT, **headers: str
) -> Answer:
    return client.generic(
        "POST",
        f"/api/v1/events/{event}",
        body,
        CONTENT_TYPE=content_type,  # Django's client leaves it out where the body is empty
        headers={name.replace("_", "-"): value for name, value in headers.items()},
    )


def publish_batch(client: Client, text: str) -> Answer:
    return client.post("/api/v1/events", text.encode(), content_type=JSON)


def stored_bodies() -> list[bytes]:
    return [bytes(message.body) for message in Message.objects.order_by("id")]


def problem_of(answer: Answer) -> tuple[int, str]:
    """Return the status and the code of a problem document."""
    assert answer["Content-Type"] == "application/problem+json"
    return answer.status_code, answer.json()["code"]


def said_of(answered: Answer) -> tuple[int, bytes, str]:
    return answered.status_code, answered.content, answered["Broker-Outcome"]


def recorded_calls() -> list[tuple[str, str, str, int]]:
    """Return outcome, status, reason and number of attempts of every call, in the order of publishing."""
    rows = Delivery.objects.select_related("message").oldest_first()
    return [(row.message.outcome, row.status, row.reason, row.attempts) for row in rows if row.message]


def job_type() -> EventType:
    """Return an event type whose jobs one endpoint takes."""
    made = factories.event_type(JOB_EVENT, EventKind.QUEUE)
    factories.subscription(event_type=made)
    return made


def publish_job(client: Client, url: str = REPLY_URL, **headers: str) -> Answer:
    return publish(client, b"{}", event=JOB_EVENT, CallbackURL=url, **headers)


def create_callback(client: Client, url: str = REPLY_URL) -> Callback:
    """Publish a job with that URL; return the callback that its endpoint is given."""
    return Callback.objects.get(message_id=publish_job(client, url).json()["id"])


def callback_address(callback: Callback, terms: CallbackTerms | None = None) -> str:
    """Return what the group's endpoint is given."""
    return callback_addresses(rows(TOKENS, [[callback.group_id]]), terms or callback_terms())[callback.group_id]


def callback_path(callback: Callback) -> str:
    return callback_address(callback).removeprefix(callback_terms().public_url)


def post_reply(callback: Callback, body: bytes = RESULT_BODY, content_type: str = JSON, **headers: str) -> Answer:
    """Post a result to a callback as an endpoint would: without a key, without a cookie."""
    sent_as = {name.replace("_", "-"): value for name, value in headers.items()}
    stranger = Client(enforce_csrf_checks=True)
    return stranger.generic("POST", callback_path(callback), body, CONTENT_TYPE=content_type, headers=sent_as)
