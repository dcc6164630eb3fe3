"""What the use cases' exceptions mean over HTTP."""

from typing import Final

from broker_project.core.api.problems import ProblemType, register, type_of
from delivery.callbacks.reply import CallbackAnswered, CallbackExpired, UnknownCallback
from delivery.operations import NotHeld
from delivery.playground.trials import ScriptsBusy
from delivery.publish import errors
from delivery.publish.errors import SchemaViolated
from delivery.publish.idempotency import PublishUnderWayError
from delivery.publish.open_messages import MoreThanMayBeOpen, TooManyOpenMessages
from delivery.publish.publish import KeyReusedError

MAX_ERRORS_PER_ITEM: Final = 10
"""A batch has up to 1,000 items; the answer to each stays short."""


def _results(refused: errors.RefusedItems) -> dict[str, object]:
    """Return a result for every item of the batch: what is wrong with it, or that it waits for the others."""
    fine = {"status": "valid"}
    return {"results": [_result(refused.refusals[n]) if n in refused.refusals else fine for n in range(refused.total)]}


def _result(refusal: errors.Refusal) -> dict[str, object]:
    kind = type_of(refusal)
    errors = {"errors": _errors(refusal)[:MAX_ERRORS_PER_ITEM]} if isinstance(refusal, SchemaViolated) else {}
    return {"status": "invalid", "code": kind.code if kind else "invalid", "detail": str(refusal), **errors}


def _errors(violated: SchemaViolated) -> list[dict[str, str]]:
    """Return `{pointer, code, detail}` for each violation, as for any other invalid input."""
    return [{"pointer": f"#{one.pointer}", "code": "schema", "detail": one.message} for one in violated.violations]


register(
    {
        errors.UnknownEventType: ProblemType(404, "unknown_event_type", "Unknown event type"),
        errors.EventTypeNotAllowed: ProblemType(403, "event_type_not_allowed", "Event type not allowed"),
        errors.CallbacksNotConfigured: ProblemType(501, "not_served", "Not served"),
        errors.UnsuitableContentType: ProblemType(415, "unsuitable_content_type", "Unsuitable content type"),
        errors.MalformedPayload: ProblemType(400, "malformed_payload", "Malformed payload"),
        SchemaViolated: ProblemType(
            422, "schema_violated", "Schema violated", members=lambda violated: {"errors": _errors(violated)}
        ),
        errors.PayloadTooLarge: ProblemType(413, "body_too_large", "Body too large"),
        errors.InvalidMetadata: ProblemType(400, "invalid_metadata", "Invalid metadata"),
        errors.InvalidCloudEvent: ProblemType(400, "invalid_cloud_event", "Invalid CloudEvent"),
        errors.UnsuitableCallback: ProblemType(400, "unsuitable_callback", "Unsuitable callback"),
        errors.RefusedItems: ProblemType(422, "invalid_items", "Invalid items", members=_results),
        UnknownCallback: ProblemType(404, "unknown_callback", "Unknown callback"),
        CallbackExpired: ProblemType(410, "callback_expired", "Callback expired"),
        CallbackAnswered: ProblemType(409, "callback_answered", "Callback answered"),
        ScriptsBusy: ProblemType(503, "scripts_busy", "Scripts busy", retry_after=1),
        MoreThanMayBeOpen: ProblemType(422, "more_than_may_be_open", "More than may be open"),
        TooManyOpenMessages: ProblemType(
            429,
            "too_many_open_messages",
            "Too many open messages",
            members=lambda refused: {"limit": refused.limit, "open": refused.present},
            retry_after=1,
        ),
        NotHeld: ProblemType(409, "not_held", "Not held"),
        KeyReusedError: ProblemType(
            422,
            "idempotency_key_reused",
            "Idempotency key reused",
            "This idempotency key stands for another publish; use a new key for a new event.",
            lambda error: {"position": error.position},
        ),
        PublishUnderWayError: ProblemType(
            409,
            "publish_in_progress",
            "Publish under way",
            "A publish with this idempotency key is still running; ask again.",
            retry_after=1,
        ),
    }
)
