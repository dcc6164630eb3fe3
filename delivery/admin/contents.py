"""What was published and answered, as pages show it to whom they may: text, cut where nobody reads on."""

from typing import ClassVar, Final

from django.http import HttpRequest
from django.utils.safestring import SafeString

from broker_project.core.admin.theme import display, preformatted
from delivery.admin.read_only import ReadOnlyAdmin, Record
from delivery.models import Message

SHOWN_BYTES: Final = 64 * 1024
"""As much of a body as one looks at in a browser; most are smaller."""
HIDDEN: Final = "hidden_contents"
"""What stands in place of contents where the user may not see them."""


class ContentsAdmin(ReadOnlyAdmin[Record]):
    """Records with contents, which only those people see who may."""

    contents: ClassVar[tuple[str, ...]]
    """The fields of its page that show what was published or answered, or tell something of it."""

    def get_fields(self, request: HttpRequest, obj: Record | None = None) -> tuple[str, ...]:
        """Return what is shown to this user."""
        shown = tuple(super().get_fields(request, obj))
        if may_see_contents(request):
            return shown
        return (*(name for name in shown if name not in self.contents), HIDDEN)

    @display(description="bodies and headers")
    def hidden_contents(self, _: Record) -> str:
        """Return why there is less to be seen."""
        return "Not shown: you have not the permission to see them."


def may_see_contents(request: HttpRequest) -> bool:
    """Tell whether the user may see bodies and headers, of messages and of answers."""
    return request.user.has_perm("delivery.view_payload")


def payload_of(message: Message) -> SafeString:
    """Return a message's body as text, cut where nobody reads on."""
    rest = message.size - SHOWN_BYTES
    more = f"\n… and {rest} more bytes" if rest > 0 else ""
    return preformatted(text_of(bytes(message.body)[:SHOWN_BYTES]) + more)


def text_of(content: bytes | memoryview | None) -> str:
    """Return stored bytes as text; what is not UTF-8 is marked, and nothing is interpreted."""
    return bytes(content or b"").decode(errors="backslashreplace").replace("\0", "\\x00")
