"""SYNC over HTTP: the endpoint's answer becomes the publisher's (contract 7)."""

from typing import Final

from django.conf import settings
from django.http import HttpResponse, HttpResponseBase
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiResponse
from rest_framework import status
from rest_framework.request import Request

from broker_project.core.api.problems import PROBLEM_JSON, ProblemType, problem_response, register
from delivery.publish.errors import InvalidMetadata
from delivery.publish.store import NewMessage
from delivery.sync import answer
from delivery.sync.call import call
from delivery.sync.caller import MAX_WAITING, MAX_WAITING_PER_OWNER, running_caller

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
    }
)

BUSY: Final = (
    f"SYNC: {MAX_WAITING} calls are waiting in this process, or {MAX_WAITING_PER_OWNER} for this subscription "
    "(`too_many_calls`), or no script could be run (`script_not_run`); `Retry-After`."
)
_PROBLEM: Final = {"$ref": "#/components/schemas/Problem"}
RESPONSES: Final = {
    (200, "*/*"): OpenApiResponse(
        OpenApiTypes.BINARY,
        "SYNC: the endpoint's answer, with its status and `Broker-Outcome: answered`; empty with "
        "`Broker-Outcome: unrouted` if no subscription qualifies.",
    ),
    (500, PROBLEM_JSON): OpenApiResponse(
        _PROBLEM, "SYNC: a script or a filter failed (`script_failed`, `filter_failed`)."
    ),
    (502, PROBLEM_JSON): OpenApiResponse(
        _PROBLEM, "SYNC: no usable answer (`endpoint_unreachable`, `endpoint_not_allowed`, `answer_too_large`)."
    ),
    (504, PROBLEM_JSON): OpenApiResponse(_PROBLEM, "SYNC: no answer within the deadline (`endpoint_timed_out`)."),
}
"""The answers to a SYNC publish, except 503."""


def answer_to(request: Request, message: NewMessage, *, publisher_id: int | None) -> HttpResponseBase:
    """Make a SYNC call and return the answer for its publisher.

    Raises:
        InvalidMetadata: a header has no meaning with a call (contract 2.6, 2.14).

    """
    for name, why in UNSUITABLE.items():
        if name in request.headers:
            raise InvalidMetadata(f"A SYNC event takes no {name}: {why}. Publish without that header.")
    if request.headers.get("Broker-Durability", "guaranteed") != "guaranteed":
        raise InvalidMetadata("A SYNC event is never volatile: publish without the header Broker-Durability.")
    caller = running_caller(
        egress=settings.EGRESS_POLICY, deadline_seconds=settings.SYNC_SECONDS, max_answer_bytes=settings.MAX_BODY_BYTES
    )
    try:
        called = call(message, publisher_id=publisher_id, caller=caller)
    except answer.CallFailed as failed:
        problem = problem_response(failed)
        assert problem  # noqa: S101 - each is registered
        return _marked(problem, problem.data["code"], failed.message_id)
    ended = called.ended
    response = HttpResponse(ended.body, status=ended.status_code or status.HTTP_200_OK)
    del response["Content-Type"]  # Django's own
    for name, value in ended.headers.items():
        response[name] = value
    return _marked(response, "answered" if called.is_routed else "unrouted", called.message_id)


def _marked(response: HttpResponse, outcome: str, message_id: int) -> HttpResponse:
    response[OUTCOME] = outcome
    if message_id:
        response[MESSAGE_ID] = str(message_id)
    return response
