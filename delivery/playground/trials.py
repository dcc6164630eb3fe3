"""Try a filter on recent messages, or a script on one message, before it is saved (contract 3, 8)."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from delivery.models import Message
from delivery.status.explain_message import filter_input_of
from delivery.sync.answer import ended_by_script
from delivery.webhook.content import Content, Header, content_of, merged
from delivery.webhook.destination import Destination
from delivery.webhook.request import OWN, RequestIdentity, webhook_request
from delivery.webhook.transform import TransformRefused, job_for, transformed_content
from subscriptions.endpoints import DEFAULT_METHOD, is_scripted, parse_endpoint
from subscriptions.filters import Filter, FilterFailed, Work
from subscriptions.models import EventType, Subscription
from subscriptions.scripting.jobs import Failed, Job, Lost, Made
from subscriptions.scripting.runner import run_once

MAX_TRIED: Final = 500
"""Newest messages on which a filter is tried."""
TRIED_BYTES: Final = 32 * 2**20
"""Their bodies together."""
AT_ONCE: Final = 20
"""Messages in memory at a time."""

ANYWHERE: Final = Destination(0, 0, DEFAULT_METHOD, "https://endpoint.example/endpoint")
"""The destination if there is no subscription yet."""
NOT_SHOWN: Final = "***"
"""Replaces the values of configured headers, which are secret."""


@dataclass(frozen=True, slots=True)
class Trial:
    """The number of recent messages that pass the filters of a subscription."""

    tried: int
    matching: int
    failing: int


def try_filters(wanted: Filter | None, event_type: EventType, *, header_filter_string: str = "") -> Trial:
    """Count how many of the newest messages of an event type pass the filters; None or an empty one is not set.

    All together they may use the work that the filters of one publish may use; then no older message is tried.
    """
    matching = failing = tried = 0
    work = Work()
    for message in _newest(event_type):
        shown = filter_input_of(message)
        shown.document.work = work
        try:
            if not header_filter_string or message.filter_string == header_filter_string:
                matching += wanted is None or wanted.matches(shown.document)
        except FilterFailed:
            if work.is_used_up:
                break
            failing += 1
        tried += 1
    return Trial(tried, matching, failing)


def _newest(event_type: EventType) -> Iterator[Message]:
    """Yield the newest messages, few at a time: each may be large."""
    of_type = Message.objects.filter(event_type=event_type, answers=None).order_by("-pk")
    ids, size = [], 0
    for message_id, its_size in of_type.values_list("pk", "size")[:MAX_TRIED]:
        size += its_size
        if size > TRIED_BYTES:
            break
        ids.append(message_id)
    for first in range(0, len(ids), AT_ONCE):
        yield from Message.objects.filter(pk__in=ids[first : first + AT_ONCE])


class ScriptTrialFailed(Exception):
    """Nothing would be sent; the text says why, and in which line."""


class ScriptsBusy(Exception):
    """Too many scripts are being tried."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a script makes of a message: a request, or the answer to a call; without headers that only the broker sets.

    With a new script, which may be for either, the request and the status code of the answer.
    """

    method: str | None = None
    """None: an answer has no method and no path."""
    path: str | None = None
    status_code: int | None = None
    headers: Mapping[str, str] | None = None
    body: bytes | None = None


def tried_content(headers: Sequence[Header], content_type: str, body: bytes, *, now_ms: int) -> Content:
    """Return what would be delivered of a message with these headers, all of which are kept."""
    return content_of(
        message_id=0,
        event_type="",
        body=body,
        content_type=content_type,
        headers=json.dumps(headers),
        published_ms=now_ms,
    )


def destination_with(script: str, subscription: Subscription) -> Destination:
    """Return a subscription's destination with this script, unsigned and without secret values."""
    if is_scripted(subscription.endpoint):
        return Destination(subscription.pk, 0, DEFAULT_METHOD, subscription.endpoint, script=script)
    endpoint = parse_endpoint(subscription.endpoint or ANYWHERE.url)
    names = [*(subscription.subscriber.header_names or ()), *(subscription.header_names or ())]
    headers = merged(*({name: NOT_SHOWN} for name in names))
    return Destination(subscription.pk, 0, endpoint.method, endpoint.url, headers, script=script)


def try_script(content: Content, destination: Destination) -> Outcome:
    """Return the request that `destination` would get after its script, or the answer to a call.

    Raises:
        ScriptTrialFailed: the script does not compile or fails, or what it makes cannot be sent.
        ScriptsBusy: no process was free.
    """
    _result_of(Job(destination.script, only_check=True))
    made = _result_of(job_for(0, content, destination))
    answer = ended_by_script(made, destination.subscription_id, content.content_type, duration_ms=0)
    if is_scripted(destination.url):
        if answer.failure:
            raise ScriptTrialFailed(answer.reason)
        return Outcome(status_code=answer.status_code, headers=answer.headers, body=answer.body)
    try:
        content = transformed_content(content, destination, made)
    except TransformRefused as refused:
        raise ScriptTrialFailed(str(refused)) from None
    request = webhook_request(content, destination, RequestIdentity(""), timestamp=0)
    url = urlsplit(request.url)
    return Outcome(
        method=request.method,
        path=(url.path or "/") + (f"?{url.query}" if url.query else ""),
        status_code=answer.status_code if destination.subscription_id == ANYWHERE.subscription_id else None,
        headers={name: value for name, value in request.headers.items() if name.lower() not in OWN},
        body=content.body,
    )


def _result_of(job: Job) -> Made:
    match run_once(job):
        case Made() as made:
            return made
        case Failed(reason) | Lost(reason):
            raise ScriptTrialFailed(reason)
        case _:
            raise ScriptsBusy("Too many scripts are being tried; try again in a moment.")
