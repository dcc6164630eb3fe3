"""What requests to publish look like, for OpenAPI."""

from typing import Any, Final

from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter

from delivery.api.published import EventBatch
from delivery.api.volatile import DURABILITY
from delivery.publish.attributes import OPTIONAL, REQUIRED, SPECVERSION
from delivery.publish.cloud_event_documents import JSON
from delivery.publish.cloud_events import BATCHED, STRUCTURED

ANYTHING: Final = "*/*"
CLOUD_EVENT: Final[dict[str, Any]] = {
    "type": "object",
    "description": "A CloudEvent 1.0 in JSON; other members are extensions.",
    "required": [*REQUIRED],
    "properties": {
        **{name: {"type": "string"} for name in (*REQUIRED, *OPTIONAL)},
        "specversion": {"type": "string", "enum": [SPECVERSION]},
        "data": {"description": "The payload, kept to the letter."},
        "data_base64": {"type": "string", "description": "The payload's bytes, instead of `data`."},
    },
    "additionalProperties": {"type": ["string", "integer", "boolean"]},
}

ONE_EVENT: Final = {
    JSON: OpenApiTypes.ANY,
    STRUCTURED: CLOUD_EVENT,
    ANYTHING: OpenApiTypes.BINARY,
}
"""What one event's type takes; a CloudEvent in binary mode is told by its headers."""

SEVERAL_EVENTS: Final = {
    JSON: EventBatch,
    BATCHED: {"type": "array", "items": CLOUD_EVENT},
    STRUCTURED: CLOUD_EVENT,
    ANYTHING: OpenApiTypes.BINARY,
}
"""A batch of either form, or one CloudEvent of any mode."""


def _header(name: str, text: str) -> OpenApiParameter:
    return OpenApiParameter(name, OpenApiTypes.STR, OpenApiParameter.HEADER, description=text)


HEADERS: Final = [
    _header("FILTER_STRING", "Compared literally with the subscriptions' header filter; also as `Filter-String`."),
    _header("Idempotency-Key", "The same publish under the same key gets the first answer for 24 h."),
    _header("CallbackURL", "Where the result of a QUEUE event is to be posted."),
    _header(
        "Broker-Destination",
        "TOPIC: the subscriber that alone gets it, by the first of its subscriptions that qualifies; `default`: each "
        "subscriber once.",
    ),
    _header("Broker-TTL", "For how long it may be sent: seconds, or such as `15m`, `12h`, `4d`; up to 30 days."),
    _header(DURABILITY, "TOPIC: `guaranteed`, which is meant without it, or `volatile`: stored nowhere, sent once."),
    _header("Broker-Not-Before", "Before when it is not sent: RFC 3339, or an HTTP date; up to 30 days ahead."),
]
