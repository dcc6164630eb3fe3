"""A volatile message on its way to one subscription: sent at most once, outside the line (behaviour 2.9)."""

from collections.abc import Callable, Generator
from typing import Any, Final

from requests import PreparedRequest

from delivery.http.transfer import Answer, RequestNotCompleted
from delivery.models import VolatileOutcome
from delivery.sync.answer import SUCCESSES
from delivery.volatile.envelope import Parcel
from delivery.webhook.parts import Destination
from delivery.webhook.request import webhook_request
from delivery.webhook.transform import TransformRefused, job_for, transformed_content
from subscriptions.scripting.jobs import Failed, Job, Lost, Made, NotRun, Result

Errand = Generator[Job | PreparedRequest, Any, VolatileOutcome]
"""Yields what is to be run or sent, is sent what came of it, and returns what became of the message."""

WITHOUT_SCRIPT: Final = {
    Failed: VolatileOutcome.SKIPPED,
    Lost: VolatileOutcome.LOST,
    NotRun: VolatileOutcome.DROPPED,
}
"""What becomes of a message whose script brought nothing to send."""


def errand(parcel: Parcel, destination: Destination | None, clock: Callable[[], float]) -> Errand:
    """Bring a parcel to a subscription; `destination` is None where nothing is sent to it now.

    One that is suspended and tried again is tried with what is stored, not with this.
    """
    if destination is None or destination.half_open:
        return VolatileOutcome.SKIPPED
    content = parcel.content
    if destination.script:
        result: Result = yield job_for(parcel.number, content, destination)
        if not isinstance(result, Made):
            return WITHOUT_SCRIPT[type(result)]
        try:
            content = transformed_content(content, destination, result)
        except TransformRefused:
            return VolatileOutcome.SKIPPED
    now = clock()
    if parcel.is_over(now):
        return VolatileOutcome.EXPIRED
    numbers = parcel.numbers(destination.subscription_id)
    answer: Answer = yield webhook_request(content, destination, numbers, timestamp=int(now))
    return outcome_of(answer)


def outcome_of(answer: Answer) -> VolatileOutcome:
    """Return what an answer, or that there is none, makes of the message; nothing is tried again."""
    if not isinstance(answer.result, RequestNotCompleted):
        is_success = answer.result.status_code in SUCCESSES
        return VolatileOutcome.DELIVERED if is_success else VolatileOutcome.REFUSED
    if answer.result.is_refused:
        return VolatileOutcome.NOT_ALLOWED
    is_from_network = answer.token is not None
    return VolatileOutcome.NO_ANSWER if is_from_network else VolatileOutcome.LOST
