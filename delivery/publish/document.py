"""What filters see of a message, new or stored."""

from collections.abc import Sequence

from broker_project.core.media_types import is_json
from subscriptions.filters import Document


def document_of(
    headers: Sequence[tuple[str, str]], content_type: str, filter_string: str | None, body: bytes
) -> Document:
    """Return what filters see: all that is kept of the message, `FILTER_STRING` under its own name."""
    seen = [*headers]
    if all(name.lower() != "content-type" for name, _ in headers):
        seen.append(("Content-Type", content_type))  # an item of a batch, or one that left it to its event type
    if filter_string is not None:
        seen.append(("FILTER_STRING", filter_string))
    return Document(seen, body, is_json=is_json(content_type))
