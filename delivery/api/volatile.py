"""Publishing what is stored nowhere (contract 2.9): what it cannot be, and what is answered."""

import time
from typing import Final
from uuid import uuid4

from drf_spectacular.utils import OpenApiResponse
from rest_framework import status
from rest_framework.request import Request
from rest_framework.response import Response

from broker_project.core.api.problems import PROBLEM_JSON, ProblemType, register
from broker_project.core.encryption import keyring
from delivery.api import sync
from delivery.models import MessageOutcome
from delivery.publish.draft import VOLATILE, durability_of
from delivery.publish.errors import InvalidMetadata
from delivery.publish.store import NewMessage
from delivery.volatile.publish_volatile import (
    MAX_WAITING,
    PURPOSE,
    NeedsMailbox,
    VolatileUnavailable,
    publish_volatile,
)
from subscriptions.models import EventKind

DURABILITY: Final = "Broker-Durability"
MAX_BYTES: Final = 64 * 1024

UNSUITABLE: Final = {
    "Idempotency-Key": "nothing is kept to answer a second publish with",
    "Broker-Not-Before": "it is sent at once",
}
"""Headers that say nothing of a volatile event, and why."""

ASTRAY: Final[dict[str, str]] = {
    MessageOutcome.DISCARDED: "None of the destination's subscriptions qualifies: nobody gets it.",
    MessageOutcome.DEAD_LETTERED: "There is no subscriber of this name: nobody gets it.",
}
"""What is said where an event's destination does not get it."""

register(
    {
        VolatileUnavailable: ProblemType(
            503,
            "volatile_unavailable",
            "Volatile messages unavailable",
            "No worker could be told of it, or too many messages wait for one: perhaps nobody gets this one. Publish"
            " it again, or without Broker-Durability, and it is stored.",
            retry_after=2,
        ),
        NeedsMailbox: ProblemType(
            400,
            "volatile_pulled",
            "Event fetched from a mailbox",
            "A subscription that qualifies is fetched from a mailbox, where only what is stored can wait: publish"
            f" without {DURABILITY}.",
        ),
    }
)

RESPONSES: Final = sync.RESPONSES | {
    (503, PROBLEM_JSON): OpenApiResponse(
        {"$ref": "#/components/schemas/Problem"},
        f"{sync.RESPONSES[503, PROBLEM_JSON].description} Volatile: no worker could be told of it, or {MAX_WAITING} "
        "messages wait for one already (`volatile_unavailable`); `Retry-After`.",
    )
}
"""What a publish is answered beside 202."""


def is_volatile(request: Request) -> bool:
    """Tell whether an event is to be stored nowhere; raise `InvalidMetadata` where its header says neither."""
    return durability_of(request.headers.get(DURABILITY)) == VOLATILE


def refuse_volatile_batch(request: Request) -> None:
    """Raise `InvalidMetadata` for a batch that is to be stored nowhere: all of it is stored or nothing."""
    if is_volatile(request):
        raise InvalidMetadata("A batch is always stored: publish volatile events one by one.")


def answer_to_volatile(request: Request, message: NewMessage) -> Response:
    """Hand a volatile event to the workers and return what its publisher is answered.

    Raises:
        InvalidMetadata: it cannot be volatile.
        NeedsMailbox, VolatileUnavailable: see `publish_volatile`.

    """
    _check(request, message)
    accepted = publish_volatile(message, key=uuid4(), now=time.time(), keys=keyring(PURPOSE))
    answer: dict[str, object] = {
        "id": None,
        "outcome": str(accepted.outcome),
        "deliveries": accepted.deliveries,
        "durability": VOLATILE,
    }
    if detail := ASTRAY.get(accepted.outcome):
        answer["detail"] = detail
    return Response(answer, status.HTTP_202_ACCEPTED)


def _check(request: Request, message: NewMessage) -> None:
    if message.kind != EventKind.TOPIC:
        raise InvalidMetadata(f"An event of kind {message.kind} is never volatile: publish without {DURABILITY}.")
    if len(message.body) > MAX_BYTES:
        raise InvalidMetadata(
            f"A volatile event has at most {MAX_BYTES} bytes; this one has {len(message.body)}: publish without"
            f" {DURABILITY}."
        )
    for name, why in UNSUITABLE.items():
        if name in request.headers:
            raise InvalidMetadata(f"A volatile event takes no {name}: {why}. Publish without one of the two headers.")
