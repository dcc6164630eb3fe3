"""How a SYNC call ends: the answer to its publisher, and what is recorded (contract 7, 8.2, 10.3)."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from django.core.exceptions import ValidationError

from delivery.http.transfer import Answer, RequestNotCompleted, values_in
from delivery.outcomes import NO_ANSWER, kind_of
from delivery.statuses import DeliveryStatus
from subscriptions.headers import validate_headers
from subscriptions.scripting.jobs import Failed, Lost, Made, Result

PASSED_ON: Final = ("Content-Type", "Content-Encoding", "Retry-After")
"""Headers that are passed on. Not `Location`: a client that follows redirects would send the event elsewhere."""
STATUSES: Final = range(200, 600)
SUCCESSES: Final = range(200, 300)
BODILESS: Final = frozenset({204, 304})
"""HTTP allows no body with these."""

MAX_COUNTED: Final = 2**63 - 1
"""The largest Content-Length that libcurl can count. For smaller ones it notices itself that bytes are missing."""


class CallFailed(Exception):
    """Base: there is no answer to pass on; the call is recorded as `message_id`, 0 if it is not."""

    message_id = 0


class TooManyCalls(CallFailed):
    """Too many calls are waiting in this web process, in all or for one endpoint; nothing was sent or stored."""


class EndpointTimedOut(CallFailed):
    """The endpoint got the request and did not answer within the deadline."""


class EndpointUnreachable(CallFailed):
    """No usable answer: no connection, a broken one, or something that is not HTTP."""


class EndpointNotAllowed(CallFailed):
    """Nothing was sent: the endpoint's address is not allowed."""


class AnswerTooLarge(CallFailed):
    """The endpoint's answer is too large to be passed on."""


class ScriptFailed(CallFailed):
    """The script that answers threw, broke a limit, was lost, or made an invalid answer."""


class ScriptNotRun(CallFailed):
    """No process was free to run the script that answers."""


class CallUndecided(CallFailed):
    """The filter of the first candidate failed, so that the right subscription is unknown; nothing was sent."""


@dataclass(frozen=True, slots=True)
class Ended:
    """How a call ended."""

    status_code: int | None = None
    """The endpoint's, or its script's; None: no answer."""
    reason: str = ""
    """Why it did not succeed."""
    failure: CallFailed | None = None
    """None: the publisher gets the answer, of any status."""
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    """Those that are passed on."""
    head: bytes = b""
    """Status line and headers as received."""
    duration_ms: int = 0
    was_tried: bool = True
    """False: no subscription qualifies, or it is unknown which does."""
    is_uncertain: bool = False
    """Whether the endpoint may have got the request although there is no answer."""

    @property
    def status(self) -> DeliveryStatus:
        """The delivery's final status (contract 10.3)."""
        is_success = self.failure is None and self.status_code in SUCCESSES
        return DeliveryStatus.DELIVERED if is_success else DeliveryStatus.FAILED


def ended_by(answer: Answer, *, max_bytes: int) -> Ended:
    """Return how an endpoint's answer, or its absence, ends the call."""
    if answer.failure:
        return _unanswered(answer.failure, answer)
    status, body = answer.status, answer.body
    length = values_in(answer.head, ["Content-Length"]).get("Content-Length", "")
    failure: CallFailed | None = None
    if status not in STATUSES:
        failure = EndpointUnreachable(f"The endpoint answered with the status {status}, which cannot be passed on.")
    elif length.isdecimal() and int(length) > MAX_COUNTED:
        failure = EndpointUnreachable(f"The endpoint answered {status} with fewer bytes than it promised.")
    elif len(body) > max_bytes:
        failure = AnswerTooLarge(f"The endpoint answered {status} with more than {max_bytes:,} bytes.")
    return Ended(
        status_code=status,
        reason=str(failure) if failure else _reason(status),
        failure=failure,
        body=body,
        headers=values_in(answer.head, PASSED_ON),
        head=answer.head,
        duration_ms=answer.duration_ms,
    )


def _unanswered(why: RequestNotCompleted, answer: Answer) -> Ended:
    failure: CallFailed = EndpointUnreachable(f"The endpoint gave no answer: {kind_of(why.reason)}.")
    if why.is_refused:
        failure = EndpointNotAllowed("Nothing was sent: the endpoint's address is not allowed.")
    if why.was_sent and why.timed_out:
        failure = EndpointTimedOut(f"The endpoint has not answered within {answer.duration_ms / 1000:.1f} s.")
    return Ended(
        reason=f"{NO_ANSWER}{why.reason}",
        failure=failure,
        head=answer.head,
        duration_ms=answer.duration_ms,
        is_uncertain=why.was_sent,
    )


def ended_by_script(result: Result, subscription_id: int, content_type: str, duration_ms: int) -> Ended:
    """Return how a subscription's script ends the call; the answer has the event's content type unless it sets one."""
    failure: CallFailed = ScriptFailed(f"The script of subscription {subscription_id}, which answers, has failed.")
    match result:
        case Made():
            ended = _made(result, content_type)
        case Failed(reason):
            ended = Ended(reason=f"script failed: {reason}")
        case Lost(reason):
            ended = Ended(reason=f"script lost: {reason}")
        case _:
            failure = ScriptNotRun(f"No process was free to run the script of subscription {subscription_id}.")
            ended = Ended(reason="no process was free to run the script")
    return replace(ended, failure=failure if ended.status_code is None else None, duration_ms=duration_ms)


def _made(made: Made, content_type: str) -> Ended:
    if not re.fullmatch("[2-5][0-9]{2}", made.status):
        return Ended(reason="script failed: $statuscode must be from 200 to 599")
    try:
        validate_headers(made.headers)
    except ValidationError as refused:
        return Ended(reason=f"script failed: {' '.join(refused.messages)}")
    status = int(made.status)
    headers = {"content-type": content_type} | {
        name.lower(): value.strip(" \t") for name, value in made.headers.items()
    }
    return Ended(
        status_code=status,
        reason=_reason(status),
        body=b"" if status in BODILESS else made.body or b"",
        headers={name: headers[name.lower()] for name in PASSED_ON if headers.get(name.lower())},
    )


def _reason(status: int) -> str:
    return "" if status in SUCCESSES else f"answered {status}"
