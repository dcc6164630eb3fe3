"""What comes of a SYNC call: what its publisher is answered, and what is recorded of it (contract 7, 8.2, 10.3)."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from django.core.exceptions import ValidationError

from delivery.http.headers import values_in
from delivery.http.transfer import Answer, RequestNotCompleted
from delivery.reasons import NO_ANSWER, kind_of
from delivery.statuses import DeliveryStatus
from subscriptions.headers import validate_headers
from subscriptions.scripting.jobs import Failed, Lost, Made, Result

PASSED_ON: Final = ("Content-Type", "Content-Encoding", "Retry-After")
"""What goes with a body. No `Location`: a client that follows by itself would send the event elsewhere."""
STATUSES: Final = range(200, 600)
SUCCESSES: Final = range(200, 300)
BODILESS: Final = frozenset({204, 304})
"""Answers that HTTP gives no body, whatever a script says."""

MAX_COUNTED: Final = 2**63 - 1
"""The largest Content-Length that libcurl holds an answer to; it notices itself where less than that has come."""

_STATUS = re.compile(r"[2-5][0-9]{2}")


class CallFailed(Exception):
    """Base: there is no answer to hand on; `message_id` is what the call is recorded under, 0 if it is not."""

    message_id = 0


class TooManyCalls(CallFailed):
    """As many calls wait in this web process, for all endpoints or for one, as may; nothing was sent or stored."""


class EndpointTimedOut(CallFailed):
    """The endpoint got the request and has not answered within the deadline."""


class EndpointUnreachable(CallFailed):
    """No usable answer: no connection, a broken one, or something that is not HTTP."""


class EndpointNotAllowed(CallFailed):
    """Nothing was sent: the endpoint's address is one that requests do not go to."""


class AnswerTooLarge(CallFailed):
    """The endpoint answered, with more bytes than are passed on."""


class ScriptFailed(CallFailed):
    """The script that answers threw, broke a limit, was lost, or made what is no answer."""


class ScriptNotRun(CallFailed):
    """No process was free to run the script that answers."""


class CallUndecided(CallFailed):
    """The filter of the subscription that might have been the one failed; nothing was sent."""


@dataclass(frozen=True, slots=True)
class Ended:
    """What came of a call."""

    status_code: int | None = None
    """The endpoint's, or its script's; None: there was no answer."""
    reason: str = ""
    """Why it did not succeed."""
    failure: CallFailed | None = None
    """None: the publisher gets the answer, whatever its status."""
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    """Those that are passed on."""
    head: bytes = b""
    """Status line and headers as received."""
    duration_ms: int = 0
    was_tried: bool = True
    is_uncertain: bool = False
    """Whether the endpoint may have got the request although no answer says so."""

    @property
    def status(self) -> DeliveryStatus:
        """What the delivery ends as (contract 10.3)."""
        is_success = self.failure is None and self.status_code in SUCCESSES
        return DeliveryStatus.DELIVERED if is_success else DeliveryStatus.FAILED


def ended_by(answer: Answer, *, max_bytes: int) -> Ended:
    """Return what an endpoint's answer, or that there was none, makes of its call."""
    result = answer.result
    if isinstance(result, RequestNotCompleted):
        return _unanswered(result, answer)
    status, body = result.status_code, result.content
    failure: CallFailed | None = None
    if status not in STATUSES:
        failure = EndpointUnreachable(f"The endpoint answered with the status {status}, which cannot be passed on.")
    elif _is_cut_short(answer.head):
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


def ended_by_script(result: Result, *, subscription_id: int, content_type: str, duration_ms: int) -> Ended:
    """Return what a subscription's script makes of the call; its content type is the event's unless it says so."""
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


def undecided(subscription_id: int, failure: str) -> Ended:
    """Return what a filter that fails makes of a call: it might have been the one, and nobody knows."""
    told = CallUndecided(f"Subscription {subscription_id} may be the one to ask, but its filter failed.")
    return Ended(reason=failure, failure=told, was_tried=False)


def _unanswered(result: RequestNotCompleted, answer: Answer) -> Ended:
    failure: CallFailed = EndpointUnreachable(f"The endpoint gave no answer: {kind_of(result.reason)}.")
    if result.is_refused:
        failure = EndpointNotAllowed("Nothing was sent: the endpoint's address is not allowed.")
    if result.timed_out:
        failure = EndpointTimedOut(f"The endpoint has not answered within {answer.duration_ms / 1000:.1f} s.")
    return Ended(
        reason=f"{NO_ANSWER}{result.reason}",
        failure=failure,
        head=answer.head,
        duration_ms=answer.duration_ms,
        is_uncertain=result.was_sent,
    )


def _made(made: Made, content_type: str) -> Ended:
    if not _STATUS.fullmatch(made.status):
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


def _is_cut_short(head: bytes) -> bool:
    """Tell whether more bytes are promised than libcurl can count: to it that is no promise, to others it is."""
    promised = values_in(head, ["Content-Length"]).get("Content-Length", "")
    return promised.isdecimal() and int(promised) > MAX_COUNTED


def _reason(status: int) -> str:
    return "" if status in SUCCESSES else f"answered {status}"
