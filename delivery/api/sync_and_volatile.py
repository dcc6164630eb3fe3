"""Publishes without a delivery in a line: SYNC calls (contract 7) and volatile messages (contract 2.9)."""

from typing import Final
from uuid import uuid4

from django.conf import settings
from django.http import HttpResponse, HttpResponseBase
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiResponse
from rest_framework import status
from rest_framework.request import Request

from broker_project.core.api.problems import ProblemType, problem_response, register
from broker_project.core.database_clock import DATABASE_CLOCK
from broker_project.core.encryption import keyring
from delivery.publish.draft import VOLATILE, durability_of
from delivery.publish.errors import InvalidMetadata
from delivery.publish.store import Accepted, NewMessage
from delivery.sync import answer
from delivery.sync.call import call
from delivery.sync.caller import get_caller, max_calls
from delivery.volatile.publish_volatile import PURPOSE, NeedsMailbox, VolatileUnavailable, publish_volatile
from subscriptions.models import EventKind

DURABILITY: Final = "Broker-Durability"
MAX_VOLATILE_BYTES: Final = 64 * 1024

OUTCOME: Final = "Broker-Outcome"
"""Distinguishes the endpoint's answer from the broker's own: `answered`, `unrouted`, or the problem's code."""
MESSAGE_ID: Final = "Broker-Message-Id"

UNSUITABLE: Final = {
    "Idempotency-Key": "answers are not kept for a second call",
    "Broker-Destination": "the subscription that qualifies is called",
    "Broker-Not-Before": "it is called at once",
    "Broker-TTL": "it is called at once",
}
"""Headers without meaning for a call, and why."""

NOT_VOLATILE: Final = {
    "Idempotency-Key": "answers are not kept for a second publish",
    "Broker-Not-Before": "it is sent at once",
}
"""Headers without meaning for a volatile event, and why."""

register(
    {
        answer.TooManyCalls: ProblemType(503, "too_many_calls", retry_after=1),
        answer.EndpointTimedOut: ProblemType(504, "endpoint_timed_out"),
        answer.EndpointUnreachable: ProblemType(502, "endpoint_unreachable"),
        answer.EndpointNotAllowed: ProblemType(502, "endpoint_not_allowed"),
        answer.AnswerTooLarge: ProblemType(502, "answer_too_large"),
        answer.ScriptFailed: ProblemType(500, "script_failed"),
        answer.ScriptNotRun: ProblemType(503, "script_not_run", retry_after=1),
        answer.CallUndecided: ProblemType(500, "filter_failed"),
        VolatileUnavailable: ProblemType(
            503,
            "volatile_unavailable",
            "Volatile messages unavailable",
            "The message could not be handed to a worker, or too many messages wait for one, so it may be lost. Publish"
            " it again, or without Broker-Durability to have it stored.",
            retry_after=2,
        ),
        NeedsMailbox: ProblemType(
            400,
            "volatile_pulled",
            "Event fetched from a mailbox",
            "A subscription that qualifies is a mailbox, which takes stored messages only: publish"
            f" without {DURABILITY}.",
        ),
    }
)

ANSWERED: Final = {
    (200, "*/*"): OpenApiResponse(
        OpenApiTypes.BINARY,
        "SYNC: the endpoint's answer, with its status and `Broker-Outcome: answered`; empty with "
        "`Broker-Outcome: unrouted` if no subscription qualifies.",
    )
}
"""The answer to an event that is not stored first."""
UNSENT: Final = (
    *("script_failed", "filter_failed", "endpoint_unreachable", "endpoint_not_allowed", "answer_too_large"),
    *("too_many_calls", "script_not_run", "endpoint_timed_out", "volatile_unavailable"),
)
"""The problems of events that are not stored first."""


def check_call(request: Request) -> None:
    """Raise `InvalidMetadata` for a header that has no meaning with a call (contract 2.6, 2.14)."""
    for name, why in UNSUITABLE.items():
        if name in request.headers:
            raise InvalidMetadata(f"A SYNC event takes no {name}: {why}. Publish without that header.")
    if request.headers.get("Broker-Durability", "guaranteed") != "guaranteed":
        raise InvalidMetadata("A SYNC event is never volatile: publish without the header Broker-Durability.")


def answer_to_sync(request: Request, message: NewMessage) -> HttpResponseBase:
    """Make a SYNC call and return the answer for its publisher; raise `InvalidMetadata` as `check_call`."""
    check_call(request)
    caller = get_caller(
        egress=settings.EGRESS_POLICY,
        deadline_seconds=settings.SYNC_SECONDS,
        max_answer_bytes=settings.MAX_BODY_BYTES,
        max_waiting=max_calls(settings.WEB_THREADS),
    )
    try:
        ended, message_id = call(message, caller=caller)
    except answer.CallFailed as failed:
        problem = problem_response(failed)
        assert problem  # noqa: S101 - each is registered
        return _marked(problem, problem.data["code"], failed.message_id)
    response = HttpResponse(ended.body, status=ended.status_code or status.HTTP_200_OK)
    del response["Content-Type"]  # Django's own
    for name, value in ended.headers.items():
        response[name] = value
    return _marked(response, "answered" if ended.was_tried else "unrouted", message_id)


def _marked(response: HttpResponse, outcome: str, message_id: int) -> HttpResponse:
    response[OUTCOME] = outcome
    if message_id:
        response[MESSAGE_ID] = str(message_id)
    return response


def is_volatile(request: Request) -> bool:
    """Tell whether an event is volatile; raise `InvalidMetadata` for an unknown durability."""
    return durability_of(request.META.get("HTTP_BROKER_DURABILITY")) == VOLATILE


def check_volatile(request: Request, message: NewMessage) -> None:
    """Raise `InvalidMetadata` if an event cannot be volatile (contract 2.9)."""
    if message.kind != EventKind.TOPIC:
        raise InvalidMetadata(f"An event of kind {message.kind} is never volatile: publish without {DURABILITY}.")
    if len(message.body) > MAX_VOLATILE_BYTES:
        raise InvalidMetadata(
            f"A volatile event has at most {MAX_VOLATILE_BYTES} bytes; this one has {len(message.body)}: publish"
            f" without {DURABILITY}."
        )
    for name, why in NOT_VOLATILE.items():
        if name in request.headers:
            raise InvalidMetadata(f"A volatile event takes no {name}: {why}. Publish without one of the two headers.")


def accept_volatile(request: Request, message: NewMessage) -> Accepted:
    """Hand a volatile event to the workers (contract 2.9).

    Raises:
        InvalidMetadata: it cannot be volatile.
        NeedsMailbox, TooManyDeliveries, VolatileUnavailable: see `publish_volatile`.
    """
    check_volatile(request, message)
    DATABASE_CLOCK.refresh()
    now, keys = DATABASE_CLOCK.time(), keyring(PURPOSE)
    return publish_volatile(message, key=uuid4(), now=now, keys=keys, max_deliveries=settings.MAX_DELIVERIES)
