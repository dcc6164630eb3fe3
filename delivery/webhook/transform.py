"""The input of a delivery's script, and what is sent after it (contract 8.1)."""

import json
import re
from base64 import b64encode
from collections import defaultdict
from dataclasses import replace
from typing import Final
from urllib.parse import quote, unquote, urlsplit

from django.core.exceptions import ValidationError

from broker_project.core.json import is_json
from delivery.limits import KEPT_SCRIPTED_BYTES
from delivery.retry import deferred_pause
from delivery.statuses import DeliveryStatus
from delivery.webhook.content import Content, merged
from delivery.webhook.destination import Destination
from delivery.webhook.request import Outgoing, masked, masked_url, without_credentials
from delivery.worker.slots import Withheld
from subscriptions.endpoints import parse_endpoint
from subscriptions.headers import validate_headers
from subscriptions.scripting.jobs import Failed, Job, Lost, Made

SEED_BITS: Final = 0xFFFFFFFF
SEED_FACTOR: Final = 2_654_435_761
"""Spreads neighbouring delivery ids over all seeds (Knuth's multiplicative hash)."""

_STRAY_PERCENT = re.compile(r"%(?![0-9A-Fa-f]{2})")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
PATH_SAFE: Final = "/%-._~!$&'()*+,;=:@"
QUERY_SAFE: Final = PATH_SAFE + "?"


class TransformRefused(Exception):
    """The script's result cannot be sent; the text says why."""


def job_for(delivery_id: int, content: Content, destination: Destination) -> Job:
    """Return the job of running a script. Its clock and random seed are the delivery's, so a repeat gives the same."""
    headers: dict[str, list[str]] = defaultdict(list)
    for name, value in json.loads(content.stored_headers):
        headers[name.lower()].append(value)
    return Job(
        source=destination.script,
        owner=destination.subscription_id,
        body=content.body,
        is_json=is_json(content.content_type),
        headers=headers,
        now_ms=content.published_ms,
        seed=(delivery_id * SEED_FACTOR ^ content.published_ms) & SEED_BITS,
    )


def transformed(delivery: Outgoing, made: Made) -> Outgoing:
    """Return the delivery as it is sent after its script; raise `TransformRefused` if it cannot be sent so."""
    content = transformed_content(delivery.content, delivery.destination, made)
    return replace(delivery, content=content, size=max(delivery.size, len(content.body)))


def transformed_content(content: Content, destination: Destination, made: Made) -> Content:
    """Return what is sent of a message after a script; raises as `transformed`."""
    try:
        validate_headers(made.headers)
        url = with_param(destination.url, made.param) if made.param else ""
    except ValidationError as refused:
        raise TransformRefused(" ".join(refused.messages)) from None
    body = content.body if made.body is None else made.body
    headers = tuple(merged(dict(content.headers), made.headers).items())
    return replace(content, body=body, headers=headers, url=url, script_headers=tuple(made.headers.items()))


def sent_record(delivery: Outgoing) -> bytes | None:
    """Return as JSON what of a request cannot be told from its message and configuration; None: nothing, as a rule.

    That is what a script made, without credentials, and whether the request was flagged as a possible duplicate.
    """
    content, to = delivery.content, delivery.destination
    record: dict[str, object] = {"possible_duplicate": True} if delivery.uncertain else {}
    if content.script_headers is not None:
        credentials = {**to.headers, "secret": b64encode(to.signing_key).decode()}

        def shown(made: str) -> str:
            return without_credentials(made.encode(), credentials).decode()

        record["url"], record["bytes"] = masked_url(shown(content.url)), len(content.body)
        record["headers"] = [(name, masked(name, shown(value))) for name, value in content.script_headers]
        if len(content.body) <= KEPT_SCRIPTED_BYTES:
            record["body"] = b64encode(without_credentials(content.body, credentials)).decode()
    return json.dumps(record).encode() if record else None


def with_param(url: str, param: str) -> str:
    """Return `url` with a script's `param` appended to its path, percent-encoded unless it is already.

    Only path and query change, never the host or port, and the path never goes up. Raises `ValidationError` for control
    characters, steps such as `..`, and a URL that gets too long.
    """
    if _CONTROL.search(param):
        raise ValidationError("$param has control characters.")
    path, mark, query = _STRAY_PERCENT.sub("%25", param).partition("?")
    parts = urlsplit(url)
    longer = (parts.path or "/") + quote(path, safe=PATH_SAFE)
    steps = re.split(r"[/\\]", unquote(longer))
    if any(step.partition(";")[0] in {".", ".."} for step in steps):  # Java servers drop what follows a semicolon
        raise ValidationError("$param must not step up the path with '..' or '.'.")
    queries = [one for one in (parts.query, quote(query, safe=QUERY_SAFE) if mark else "") if one]
    made = parts._replace(path=longer, query="&".join(queries)).geturl()
    return parse_endpoint(made).url


def withheld(line_id: int, delivery: Outgoing, result: Failed | Lost) -> Withheld:
    """Return what happens to a delivery whose script made nothing: HELD if it would fail again, else deferred (8.3)."""
    is_held = isinstance(result, Failed)
    return Withheld(
        line_id=line_id,
        delivery_id=delivery.id,
        status=DeliveryStatus.HELD if is_held else DeliveryStatus.PENDING,
        pause=None if is_held else deferred_pause(delivery.times_deferred + 1),
        reason=f"script {'failed' if is_held else 'lost'}: {result.reason}",
        message_id=delivery.content.message_id,
        subscriber=delivery.destination.subscriber,
    )
