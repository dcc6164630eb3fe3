"""The requests of a delivery's attempts, as they were sent: rebuilt from its message and the configuration of then.

Values of configured headers, signatures and other credentials are masked: whoever may see an attempt may see these.
"""

import json
import re
import shlex
from base64 import b64decode, b64encode
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import lru_cache
from typing import Any, Final, NamedTuple

from django.core.exceptions import ValidationError
from django.db.models import Count, Q

from delivery.models import Attempt, Callback, Delivery, Message
from delivery.status.callback_status import origin_of
from delivery.statuses import DELIVERY_ID_PREFIX, GROUP_ID_PREFIX
from delivery.webhook.content import Content, content_of, merged
from delivery.webhook.destination import Destination
from delivery.webhook.request import (
    MASK,
    RequestIdentity,
    add_sequence,
    masked,
    masked_url,
    webhook_request,
)
from subscriptions.endpoints import DEFAULT_METHOD, parse_endpoint
from subscriptions.models import FormerDestination, Processing, StatusChange

MAX_CHANGES: Final = 1_000
"""Changes of configuration during a delivery that are taken into account; also attempts, to find its first number."""
SHOWN_MASK: Final = MASK.decode()
CONTROL: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
"""Characters by which pasted text can give commands to a terminal, also within quotes."""
MAX_SHOWN_BYTES: Final = 64 * 1024
"""How much of a body is shown; most are smaller. A larger one is no part of a command: a shell takes 128 KiB."""


@dataclass(frozen=True, slots=True)
class SentRequest:
    """One request as it was sent, but for credentials."""

    method: str
    url: str
    headers: Sequence[tuple[str, str]]
    body: bytes | None
    """None: a script made it, and it was too large to be kept."""
    size: int
    """Of the body, in bytes."""

    @property
    def origin(self) -> str:
        """Where it went without the path, which may have been made from a message."""
        return origin_of(self.url)

    @property
    def body_text(self) -> str:
        """The body as it is shown, cut."""
        if self.body is None:
            return f"A script made these {self.size} bytes, too many to be kept."
        rest = self.size - MAX_SHOWN_BYTES
        return text_of(self.body[:MAX_SHOWN_BYTES]) + (f"\n… and {rest} more bytes" if rest > 0 else "")

    @property
    def curl(self) -> str:
        """The command that sends it again, once the masked values are put in."""
        command = ["curl", "--globoff", "--request", self.method, _quoted(self.url)]
        for name, value in self.headers:
            command += ["--header", _quoted(f"{name}: {value}" if value else f"{name};")]
        before = ""
        if self.body is None or self.size > MAX_SHOWN_BYTES:
            command += ["--data-binary", "@body"]
        elif (text := _shell_text(self.body)) is not None:
            command += ["--data-raw", shlex.quote(text)]
        else:
            before = f"{_decoded(self.body)} | "
            command += ["--data-binary", "@-"]
        return before + " ".join(command)


def _shell_text(body: bytes) -> str | None:
    """Return a body as an argument of a command; None if it cannot be one."""
    try:
        text = body.decode()
    except UnicodeDecodeError:
        return None
    return None if CONTROL.search(text) else text


def _quoted(text: str) -> str:
    """Return the word of a command that stands for a text."""
    return f'"$({_decoded(text.encode())})"' if CONTROL.search(text) else shlex.quote(text)


def _decoded(content: bytes) -> str:
    """Return the command that prints this content."""
    return f"printf %s {b64encode(content).decode()} | base64 -d"


class ConfiguredThen(NamedTuple):
    """The configuration of a subscription at one time."""

    endpoint: str
    output: str
    retry_policy: str
    """Its name; empty: it had none."""
    header_names: tuple[str, ...]
    """The subscriber's too, in any order."""


class Configurations:
    """What one delivery was sent with, at any time since `since`: the present configuration, and what was changed."""

    def __init__(self, delivery: Delivery, since: datetime) -> None:
        subscription = delivery.subscription
        assert subscription  # noqa: S101 - the caller asks for deliveries of subscriptions only
        changes = FormerDestination.objects.filter(
            Q(subscription_id=subscription.pk) | Q(subscription_id=None),
            subscriber_id=subscription.subscriber_id,
            at__gt=since,
        )
        self._changes = [*changes.order_by("at", "id")[:MAX_CHANGES]]
        self._now = FormerDestination(
            header_names=subscription.header_names or [],
            endpoint=subscription.endpoint,
            output=subscription.output,
            retry_policy=str(subscription.retry_policy or ""),
        )
        self._names_now = subscription.subscriber.header_names or []

    def at(self, moment: datetime) -> ConfiguredThen:
        """Return the configuration of a moment."""
        later = [one for one in self._changes if one.at > moment]
        own = next((one for one in later if one.subscription_id), self._now)
        of_all = next((one.header_names for one in later if one.subscription_id is None), self._names_now)
        return ConfiguredThen(own.endpoint, own.output, own.retry_policy, (*of_all, *own.header_names))


class SentRequests:
    """The requests of one delivery, whose message and configurations are read once, with at most seven queries."""

    def __init__(self, delivery: Delivery, attempts: Sequence[Attempt]) -> None:
        self._delivery = delivery
        found = Message.objects.select_related("event_type", "publisher").filter(pk=delivery.message_id or 0)
        self.message = found.first()
        """None: it is not kept any more."""
        self._content = _content_of(self.message) if self.message else None
        self._configurations: Configurations | None = None
        self._numbered_since = _numbered_since(delivery) if delivery.sequence else None
        self._reply_to = self._callback_url = ""
        if delivery.subscription and attempts:
            self._configurations = Configurations(delivery, min(one.started_at for one in attempts))
        elif attempts:
            reply = Callback.objects.filter(delivery_id=delivery.pk, reply_id=delivery.message_id).first()
            self._reply_to = f"{origin_of(reply.url)}/{SHOWN_MASK}" if reply else ""
        if group_id := delivery.group_id:
            its = Delivery.objects.filter(message=delivery.message_id, group=group_id).values_list("pk", flat=True)
            of_group = Attempt.objects.filter(delivery__in=[*its])
            earlier = {f"before_{one.pk}": Count("pk", filter=Q(pk__lt=one.pk)) for one in attempts}
            self._of_group: dict[str, int] = of_group.aggregate(**earlier)
            self._callback_url = SHOWN_MASK if Callback.objects.filter(group_id=group_id).exists() else ""

    def configured_at(self, moment: datetime) -> ConfiguredThen | None:
        """Return the configuration of its subscription at a moment; None for the reply to a callback."""
        return self._configurations.at(moment) if self._configurations else None

    def of(self, attempt: Attempt) -> SentRequest | None:
        """Return the request of an attempt; None if its message or its address is gone."""
        configured = self.configured_at(attempt.started_at)
        to = _masked_destination(configured) if configured else Destination(0, 0, DEFAULT_METHOD, self._reply_to)
        if self._content is None or to is None or not to.url:
            return None
        made = json.loads(bytes(attempt.sent)) if attempt.sent else {}
        content = _as_made(self._content, made)
        request = webhook_request(
            content, to, self._identity_of(attempt, made), timestamp=int(attempt.started_at.timestamp())
        )
        if configured:
            request.lines.append(b"webhook-signature: " + MASK)
        if self._numbered_since is None or attempt.started_at >= self._numbered_since:
            add_sequence(request, self._delivery.sequence or 0)
        is_kept = "bytes" not in made or "body" in made
        return SentRequest(
            request.method,
            masked_url(request.url),
            [(name, masked(name, value)) for name, value in request.headers.items()],
            request.body if is_kept else None,
            len(request.body) if is_kept else made["bytes"],
        )

    def _identity_of(self, attempt: Attempt, made: dict[str, Any]) -> RequestIdentity:
        delivery, number, known_as = self._delivery, attempt.number, f"{DELIVERY_ID_PREFIX}{self._delivery.pk}"
        if delivery.group_id:
            number = self._of_group[f"before_{attempt.pk}"] + 1
            known_as = f"{GROUP_ID_PREFIX}{delivery.group_id}"
        return RequestIdentity(
            known_as,
            attempt=number,
            possible_duplicate=made.get("possible_duplicate", False),
            callback_url=self._callback_url,
            ordering_key=delivery.ordering_key or "",
        )


def _numbered_since(delivery: Delivery) -> datetime | None:
    """Return the start of the first attempt that had the delivery's number; None: all had it, or nothing else is known.

    A delivery gets no number while its subscriber is CONCURRENT, but keeps one that it has (contract 4.13).
    """
    if delivery.subscription is None:
        return None
    subscriber = delivery.subscription.subscriber
    changes = StatusChange.objects.filter(subscriber_id=subscriber.pk, subscription_id=None, at__gt=delivery.created_at)
    history = [*changes.order_by("at", "id").values_list("at", "processing_before")[:MAX_CHANGES]]
    if Processing.CONCURRENT not in {subscriber.processing, *(before for _, before in history)}:
        return None
    for started_at in delivery.attempt_set.order_by("id").values_list("started_at", flat=True)[:MAX_CHANGES]:
        if next((before for at, before in history if at > started_at), subscriber.processing) != Processing.CONCURRENT:
            return started_at
    return None


def text_of(content: bytes | memoryview | None) -> str:
    """Return stored bytes as text; what is not UTF-8 and control characters are escaped, nothing is interpreted."""
    lines = bytes(content or b"").decode(errors="backslashreplace").split("\r\n")
    return "\r\n".join(CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", line) for line in lines)


def _content_of(message: Message) -> Content:
    """Return what is delivered of a message as published."""
    return content_of(
        message.pk,
        message.event_type.name if message.event_type else "",
        bytes(message.body),
        message.content_type,
        json.dumps(message.headers),
        round(message.published_at.timestamp() * 1000),
    )


def _as_made(content: Content, made: dict[str, Any]) -> Content:
    """Return the content with what a script made of it, if one did."""
    if "bytes" not in made:
        return content
    headers = merged(dict(content.headers), dict(made["headers"]))
    body = b64decode(made.get("body", ""))
    return replace(content, body=body, headers=tuple(headers.items()), url=made["url"])


@lru_cache(maxsize=256)
def _masked_destination(configured: ConfiguredThen) -> Destination | None:
    """Return where requests went, without keys and values of headers; None if that was no address."""
    try:
        endpoint = parse_endpoint(configured.endpoint)
    except ValidationError:
        return None
    headers = merged(*({name: SHOWN_MASK} for name in configured.header_names))
    return Destination(0, 0, endpoint.method, endpoint.url, headers, output=configured.output)
