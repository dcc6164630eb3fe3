"""Why a publish is refused: one exception for each fact, fit to be shown to the publisher."""

from collections.abc import Sequence

from subscriptions.schemas import Violation


class Refusal(Exception):
    """Base: this message cannot be accepted as it is; the text says what to change."""


class UnknownEventType(Refusal):
    """There is no event type of this name."""


class EventTypeNotAllowed(Refusal):
    """The publisher may publish certain event types only, and this is none of them."""


class KindNotServed(Refusal):
    """Messages of this kind of event type cannot be published yet."""


class UnsuitableContentType(Refusal):
    """The content type is not the event type's."""


class MalformedPayload(Refusal):
    """The body is not what the event type's content type says."""


class SchemaViolated(Refusal):
    """The body is JSON, but not as the event type's schema says; `violations` says where."""

    def __init__(self, text: str, violations: Sequence[Violation]) -> None:
        super().__init__(text)
        self.violations = violations


class PayloadTooLarge(Refusal):
    """The body has more bytes than a message may have."""


class InvalidMetadata(Refusal):
    """A header or field beside the body is not usable."""


class InvalidCloudEvent(Refusal):
    """What is sent as a CloudEvent is none, or of another event type than its address."""


class UnsuitableCallback(Refusal):
    """No reply can be sent to the `CallbackURL`."""


class RefusedItems(Exception):
    """Some messages of a batch are refused, so none is stored; `refusals` has them by position."""

    def __init__(self, refusals: dict[int, Refusal], total: int) -> None:
        super().__init__(f"{len(refusals)} of {total} items cannot be accepted; nothing was stored.")
        self.refusals = refusals
        self.total = total
