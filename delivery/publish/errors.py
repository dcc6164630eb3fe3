"""Why a publish is refused: one exception for each fact; its text is shown to the publisher."""

from collections.abc import Sequence

from subscriptions.schemas import Violation


class Refusal(Exception):
    """Base: this message cannot be accepted; the text says what to change."""


class UnknownEventType(Refusal):
    """No event type has this name."""


class EventTypeNotAllowed(Refusal):
    """The publisher may publish certain event types only, not this one."""


class CallbacksNotConfigured(Refusal):
    """Callbacks are not configured: the broker does not know its own address."""


class UnsuitableContentType(Refusal):
    """The content type is not the event type's."""


class MalformedPayload(Refusal):
    """The body is not what the event type's content type says."""


class SchemaViolated(Refusal):
    """The body violates the event type's schema; `violations` says where."""

    def __init__(self, text: str, violations: Sequence[Violation]) -> None:
        super().__init__(text)
        self.violations = violations


class PayloadTooLarge(Refusal):
    """The body is larger than a message may be."""


class InvalidMetadata(Refusal):
    """A header or field beside the body is not usable."""


class InvalidCloudEvent(Refusal):
    """The CloudEvent is invalid, or its type is not the one in the path."""


class UnsuitableCallback(Refusal):
    """No reply can be sent to the `CallbackURL`."""


class RefusedItems(Exception):
    """Some messages of a batch are refused, so nothing is stored; `refusals` has them by position."""

    def __init__(self, refusals: dict[int, Refusal], total: int) -> None:
        super().__init__(f"{len(refusals)} of {total} items cannot be accepted; nothing was stored.")
        self.refusals = refusals
        self.total = total


class TooManyDeliveries(Exception):
    """A publication would become more deliveries than one transaction may store; nothing was stored."""

    def __init__(self, deliveries: int, limit: int) -> None:
        super().__init__(
            f"This would become {deliveries} deliveries, and one request may become {limit}: send smaller batches, or"
            " raise BROKER_MAX_DELIVERIES for events with more subscriptions."
        )
