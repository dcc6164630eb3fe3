"""A message as its client reads it, in JSON (behaviour 9.1)."""

import base64
from datetime import UTC, datetime
from typing import Final

from delivery.mailbox.hand_outs import Fetched
from delivery.webhook.parts import WEBHOOK_ID_PREFIX

CONTENT_TYPE: Final = "Content-Type"


def document(fetched: Fetched, *, receipt: str) -> dict[str, object]:
    """Return what is told of a message that is handed out; times are datetimes.

    Its body stands there as text or in base64, never as a value: it is bytes (behaviour 2.5), and a message that some
    reader of JSON chokes on would take the others with it.
    """
    content = fetched.content
    headers = dict(content.headers)
    return {
        "receipt": receipt,
        "id": f"{WEBHOOK_ID_PREFIX}{fetched.delivery_id}",
        "delivery_id": fetched.delivery_id,
        "message_id": content.message_id,
        "event_type": content.event_type,
        "subscription_id": fetched.subscription_id,
        "published_at": datetime.fromtimestamp(content.published_ms / 1000, UTC),
        "in_flight_until": fetched.until,
        "in_flight_seconds": fetched.seconds,
        "redeliveries": fetched.redeliveries,
        "possible_duplicate": fetched.possible_duplicate,
        "content_type": headers.pop(CONTENT_TYPE, ""),
        "headers": headers,
        **_body(content.body),
    }


def _body(body: bytes) -> dict[str, str]:
    """Return the exact bytes: a text that is they in UTF-8, or base64 where there is none."""
    try:
        return {"body": body.decode()}
    except UnicodeDecodeError:
        return {"body_base64": base64.b64encode(body).decode()}
