"""What the exceptions of publishing and of other use cases mean in HTTP."""

from typing import Final

from broker_project.core.api.problems import ProblemType, register, type_of
from delivery.callbacks.reply import CallbackAnswered, CallbackExpired, UnknownCallback
from delivery.operations import NotHeld, NotWaiting
from delivery.playground.trials import ScriptsBusy
from delivery.publish import errors
from delivery.publish.errors import SchemaViolated
from delivery.publish.idempotency import PublishInProgress
from delivery.publish.open_messages import MoreThanMayBeOpen, TooManyOpenMessages
from delivery.publish.publish import KeyReusedError

MAX_ERRORS_PER_ITEM: Final = 10
"""A batch has up to 1,000 items; the answer to each stays short."""


def _results(refused: errors.RefusedItems) -> dict[str, object]:
    """Return a result for every item of the batch: its error, or that it is valid."""
    given = (refused.refusals.get(n) for n in range(refused.total))
    return {"results": [_result(refusal) if refusal else {"status": "valid"} for refusal in given]}


def _result(refusal: errors.Refusal) -> dict[str, object]:
    kind = type_of(refusal)
    errors = {"errors": _errors(refusal)[:MAX_ERRORS_PER_ITEM]} if isinstance(refusal, SchemaViolated) else {}
    return {"status": "invalid", "code": kind.code if kind else "invalid", "detail": str(refusal), **errors}


def _errors(violated: SchemaViolated) -> list[dict[str, str]]:
    """Return `{pointer, code, detail}` for each violation, as for any other invalid input."""
    return [{"pointer": f"#{one.pointer}", "code": "schema", "detail": one.message} for one in violated.violations]


register(
    {
        errors.UnknownEventType: ProblemType(404, "unknown_event_type"),
        errors.EventTypeNotAllowed: ProblemType(403, "event_type_not_allowed"),
        errors.CallbacksNotConfigured: ProblemType(501, "not_served"),
        errors.UnsuitableContentType: ProblemType(415, "unsuitable_content_type"),
        errors.MalformedPayload: ProblemType(400, "malformed_payload"),
        SchemaViolated: ProblemType(422, "schema_violated", members=lambda violated: {"errors": _errors(violated)}),
        errors.PayloadTooLarge: ProblemType(413, "body_too_large"),
        errors.InvalidMetadata: ProblemType(400, "invalid_metadata"),
        errors.InvalidCloudEvent: ProblemType(400, "invalid_cloud_event", "Invalid CloudEvent"),
        errors.UnsuitableCallback: ProblemType(400, "unsuitable_callback"),
        errors.RefusedItems: ProblemType(422, "invalid_items", members=_results),
        UnknownCallback: ProblemType(404, "unknown_callback"),
        CallbackExpired: ProblemType(410, "callback_expired"),
        CallbackAnswered: ProblemType(409, "callback_answered"),
        ScriptsBusy: ProblemType(503, "scripts_busy", retry_after=1),
        errors.TooManyDeliveries: ProblemType(413, "too_many_deliveries"),
        MoreThanMayBeOpen: ProblemType(422, "batch_exceeds_open_limit"),
        TooManyOpenMessages: ProblemType(
            429,
            "too_many_open_messages",
            members=lambda refused: {"limit": refused.limit, "open": refused.present},
            retry_after=1,
        ),
        NotHeld: ProblemType(409, "not_held"),
        NotWaiting: ProblemType(409, "not_waiting"),
        KeyReusedError: ProblemType(
            422,
            "idempotency_key_reused",
            detail="This idempotency key belongs to another publish. Use a new key for a new event.",
            members=lambda error: {"position": error.position},
        ),
        PublishInProgress: ProblemType(
            409,
            "publish_in_progress",
            detail="A publish with this idempotency key is still running. Try again.",
            retry_after=1,
        ),
    }
)
