"""What was published and answered, as pages show it: text, cut where nobody reads on."""

from typing import Final

from django.utils.safestring import SafeString

from delivery.models import Message
from subscriptions.admin.theme import preformatted

SHOWN_BYTES: Final = 64 * 1024
"""As much of a body as one looks at in a browser; most are smaller."""


def payload_of(message: Message) -> SafeString:
    """Return a message's body as text, cut where nobody reads on."""
    rest = message.size - SHOWN_BYTES
    more = f"\n… and {rest} more bytes" if rest > 0 else ""
    return preformatted(text_of(bytes(message.body)[:SHOWN_BYTES]) + more)


def text_of(content: bytes | memoryview | None) -> str:
    """Return stored bytes as text; what is not UTF-8 is marked, and nothing is interpreted."""
    return bytes(content or b"").decode(errors="backslashreplace").replace("\0", "\\x00")
