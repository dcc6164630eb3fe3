"""Callbacks for tests: jobs published with a CallbackURL, and replies posted as their endpoints would."""

from django.test import Client

from delivery.callbacks.address import CallbackTerms, callback_terms
from delivery.callbacks.resolve import callback_addresses
from delivery.models import Callback
from subscriptions.models import EventKind, EventType
from tests import factories
from tests.clients import Answer
from tests.publishing import JSON, publish

JOB = "Shop.Invoice.Render"
REPLY_TO = "https://shop.example.org/done?job=7"
RESULT = b'{"total": 12.50, "total": 12.5}'


def job_type() -> EventType:
    """Return an event type whose jobs one endpoint takes."""
    made = factories.event_type(JOB, EventKind.QUEUE)
    factories.subscription(event_type=made)
    return made


def publish_job(client: Client, url: str = REPLY_TO, **headers: str) -> Answer:
    return publish(client, b"{}", event=JOB, CallbackURL=url, **headers)


def called_back(client: Client, url: str = REPLY_TO) -> Callback:
    """Publish a job with that URL; return the callback that its endpoint is given."""
    return Callback.objects.get(message_id=publish_job(client, url).json()["id"])


def address_of(callback: Callback, terms: CallbackTerms | None = None) -> str:
    """Return what the group's endpoint is given."""
    return callback_addresses([callback.group_id], terms or callback_terms())[callback.group_id]


def path_of(callback: Callback) -> str:
    return address_of(callback).removeprefix(callback_terms().public_url)


def post(callback: Callback, body: bytes = RESULT, content_type: str = JSON, **headers: str) -> Answer:
    """Post a result to a callback as an endpoint would: without a key, without a cookie."""
    sent_as = {name.replace("_", "-"): value for name, value in headers.items()}
    stranger = Client(enforce_csrf_checks=True)
    return stranger.generic("POST", path_of(callback), body, CONTENT_TYPE=content_type, headers=sent_as)
