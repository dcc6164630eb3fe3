"""The HTTP request of one delivery, signed (Standard Webhooks; contract 4.11), and its answer without credentials.

Some endpoints repeat the headers that they get, and answers are stored and shown. Masking them is best effort and no
security boundary: an endpoint may write a value in an unforeseen way.
"""

import json
import re
from binascii import b2a_base64
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256
from typing import Any, Final
from urllib.parse import quote, unquote

from delivery.http.transfer import EncodedRequest, header_line
from delivery.statuses import DELIVERY_ID_PREFIX, GROUP_ID_PREFIX
from delivery.webhook.cloud_event_output import in_payload_format
from delivery.webhook.content import MAX_KEPT_CHARACTERS, Content, Headers, merged
from delivery.webhook.destination import Destination
from subscriptions.payload_format import PayloadFormat

USER_AGENT: Final = "broker/0.1"
AS_PUBLISHED: Final = PayloadFormat.AS_PUBLISHED
VISIBLE: Final = "".join(map(chr, range(0x21, 0x7F))).replace("%", "")
"""What is not percent-encoded in an ordering key."""
BLOCK_BYTES: Final = 64
"""Of SHA-256."""

OWN: Final = frozenset(
    {
        "webhook-id",
        "webhook-timestamp",
        "webhook-signature",
        "webhook-sequence",
        "webhook-ordering-key",
        "webhook-attempt",
        "webhook-possible-duplicate",
        "webhook-test",
        "broker-event-type",
        "broker-message-id",
        "callbackurl",
    }
)
"""Headers that only the broker sets."""

CONFIDENTIAL: Final = frozenset({"webhook-signature", "callbackurl"})
"""Those of them that nobody is shown."""

MASK: Final = b"***"
MIN_CHARACTERS: Final = 8
"""Shorter credentials are not masked: they would match text that has nothing to do with them."""
MIN_UNNAMED_CHARACTERS: Final = 16
"""The same for a header whose name does not say that it has a credential."""
MIN_HEAD_CHARACTERS: Final = 4
"""The shortest beginning of a credential that is masked where an answer ends within it."""
MAX_CREDENTIAL_BYTES: Final = 16 * 1024
"""How much more of an answer is read than is shown, so that a credential at its end is found."""

_NAMED: Final = re.compile(r"auth|key|token|secret|passw|credential|signature|session|cookie", re.IGNORECASE)
_SCHEMED: Final = re.compile(r"\s*(basic|bearer|digest|token)\s", re.IGNORECASE)
_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9-]* +(\S.*)")
_MEDIA_TYPES: Final = re.compile(
    r"(\*|application|audio|font|image|message|model|multipart|text|video)/[a-z0-9.+*-]{1,64}([,;].*)?", re.IGNORECASE
)
_WORDS: Final = re.compile(r"[A-Za-z]{1,15}([ ,;._/-]+[A-Za-z]{1,15})*")
_PLAIN: Final = frozenset({"accept", "accept-language", "content-type", "user-agent"})
_ESCAPED_BY_SOME: Final = re.compile(r"""[<>&'+"]""")


@dataclass(slots=True)
class Outgoing:
    """A delivery that its line may send next."""

    id: int
    content: Content
    destination: Destination
    attempts: int
    """The requests made so far."""
    sequence: int | None
    uncertain: bool
    size: int
    is_deferred: bool
    times_deferred: int
    group_id: int | None = None
    """Its QUEUE group; attempts and uncertainty are then the group's."""
    marked_as: int | None = None
    """The number under which it was marked as IN_FLIGHT with its page; None: it is marked when it is sent."""
    callback_url: str = ""
    ordering_key: str = ""
    needs_isolation: bool = False
    """Whether it may be a poison message: it is sent by a process of its own (contract 4.19)."""

    @property
    def webhook_id(self) -> str:
        """The id of its requests: that of its QUEUE group, whichever endpoint they go to, or its own."""
        return f"{DELIVERY_ID_PREFIX}{self.id}" if self.group_id is None else f"{GROUP_ID_PREFIX}{self.group_id}"


@dataclass(slots=True)
class RequestIdentity:
    """What distinguishes one request of a delivery from the others."""

    webhook_id: str
    """The same in every attempt (contract 4.11)."""
    attempt: int = 1
    possible_duplicate: bool = False
    callback_url: str = ""
    """Where the endpoint may post its result."""
    is_test: bool = False
    """Whether it is a test event, which was not published."""
    ordering_key: str = ""
    """Within which its order counts; empty: it has none."""


def request_of(delivery: Outgoing, timestamp: int) -> EncodedRequest:
    """Return the next request of `delivery`, all but its number, signed for a second since 1970."""
    identity = RequestIdentity(
        delivery.webhook_id,
        attempt=delivery.attempts + 1,
        possible_duplicate=delivery.uncertain,
        callback_url=delivery.callback_url,
        ordering_key=delivery.ordering_key,
    )
    return webhook_request(delivery.content, delivery.destination, identity, timestamp=timestamp)


def add_sequence(request: EncodedRequest, sequence: int) -> None:
    """Give a request its number, unless that is 0: it is unordered."""
    if sequence:
        request.lines.append(f"Webhook-Sequence: {sequence}".encode())


def webhook_request(
    content: Content, destination: Destination, identity: RequestIdentity, *, timestamp: int
) -> EncodedRequest:
    """Return the request in the subscription's payload format, signed if there is a key.

    Of equal headers, the broker's win over the subscription's, the subscriber's and the publisher's, in this order.
    """
    if destination.output != AS_PUBLISHED:
        content = in_payload_format(content, destination.output, destination.headers)
    webhook_id, body = identity.webhook_id, content.body
    names, configured = _lines_of_destination(destination)
    kept = _lines_of_content if len(content.stored_headers) <= MAX_KEPT_CHARACTERS else _lines_of_content.__wrapped__
    lines = [line for name, line in kept(content.headers, content.event_type) if name not in names]
    lines += configured
    lines.append(f"webhook-id: {webhook_id}".encode())
    lines.append(f"webhook-timestamp: {timestamp}".encode())
    lines.append(f"Webhook-Attempt: {identity.attempt}".encode())
    if content.message_id:
        lines.append(f"Broker-Message-Id: {content.message_id}".encode())
    if destination.signing_key:
        lines.append(_signature_line(destination, f"{webhook_id}.{timestamp}.".encode() + body, timestamp))
    if identity.callback_url or identity.possible_duplicate or identity.is_test or identity.ordering_key:
        lines += _rare_lines(identity)
    return EncodedRequest(destination.method, content.url or destination.url, lines, body, timestamp)


def _signature_line(destination: Destination, signed: bytes, timestamp: int) -> bytes:
    """Return the header with the signatures of all keys that sign at that time."""
    line = b"webhook-signature:"
    for key, until in ((destination.signing_key, None), *destination.former_keys):
        if until is None or timestamp < until:
            inner, outer = _hmac_states(key)
            inner, outer = inner.copy(), outer.copy()
            inner.update(signed)
            outer.update(inner.digest())
            line += b" v1," + b2a_base64(outer.digest(), newline=False)
    return line


def _rare_lines(identity: RequestIdentity) -> Iterator[bytes]:
    if identity.ordering_key:
        yield f"Webhook-Ordering-Key: {quote(identity.ordering_key, safe=VISIBLE)}".encode()
    if identity.callback_url:
        yield header_line("CallbackURL", identity.callback_url)
    if identity.possible_duplicate:
        yield b"Webhook-Possible-Duplicate: true"
    if identity.is_test:
        yield b"Webhook-Test: true"


@lru_cache(maxsize=16_384)
def _hmac_states(key: bytes) -> tuple[Any, Any]:
    """Return SHA-256 after the inner and the outer key of HMAC (RFC 2104): copies of them sign in half the time."""
    padded = (key if len(key) <= BLOCK_BYTES else sha256(key).digest()).ljust(BLOCK_BYTES, b"\0")
    return sha256(bytes(byte ^ 0x36 for byte in padded)), sha256(bytes(byte ^ 0x5C for byte in padded))


@lru_cache(maxsize=1024)
def _lines_of_content(headers: Headers, event_type: str) -> tuple[tuple[str, bytes], ...]:
    """Return the header lines of all messages with these headers, each with its name in lower case."""
    lines = {name.lower(): header_line(name, value) for name, value in headers if name.lower() not in OWN}
    return *lines.items(), ("broker-event-type", header_line("Broker-Event-Type", event_type))


@lru_cache(maxsize=16_384)
def _lines_of_destination(destination: Destination) -> tuple[frozenset[str], tuple[bytes, ...]]:
    """Return the header lines of all requests to a subscription, and their names in lower case."""
    # Other formats than AS_PUBLISHED contain the configured headers already.
    configured = destination.headers if destination.output == AS_PUBLISHED else {}
    layers = merged(configured, {"User-Agent": USER_AGENT})
    kept = {name.lower(): header_line(name, value) for name, value in layers.items() if name.lower() not in OWN}
    return frozenset(kept), tuple(kept.values())


def masked(name: str, value: str) -> str:
    """Return a header's value as it is shown to people: the mask if it is, or may be, a credential."""
    lower = name.lower()
    is_shown = lower not in CONFIDENTIAL if lower in OWN else not (_NAMED.search(name) or _SCHEMED.match(value))
    return value if is_shown else MASK.decode()


def masked_url(url: str) -> str:
    """Return a URL as it is shown to people: values in its query are masked if they are named like credentials."""
    path, mark, query = url.partition("?")
    pairs = (pair.partition("=") for pair in query.split("&"))
    shown = (
        name + equals + (MASK.decode() if _NAMED.search(unquote(name)) else value) for name, equals, value in pairs
    )
    return path + mark + "&".join(shown)


def without_credentials(answer: bytes, headers: Mapping[str, str], *, max_bytes: int | None = None) -> bytes:
    """Return the first `max_bytes` of an answer, or all of a text, with what is secret in `headers` masked."""
    forms = _forms_of(tuple(headers.items())) if answer and headers else ()
    for form in forms:
        answer = answer.replace(form, MASK)
    if max_bytes is None:
        return answer
    for form in forms:
        # It may have been cut off within a credential.
        if len(answer) < max_bytes + len(form) and form[:MIN_HEAD_CHARACTERS] in answer[-len(form) :]:
            lengths = range(min(len(form), len(answer)), MIN_HEAD_CHARACTERS - 1, -1)
            cut = next((length for length in lengths if answer.endswith(form[:length])), 0)
            answer = answer[:-cut] + MASK if cut else answer
    return answer[:max_bytes]


@lru_cache(maxsize=16_384)
def _forms_of(headers: tuple[tuple[str, str], ...]) -> tuple[bytes, ...]:
    """Return how endpoints may write the credentials in a destination's headers, the longest first."""
    return tuple(sorted({form for header in headers for form in _forms(*header)}, key=len, reverse=True))


def _forms(name: str, value: str) -> frozenset[bytes]:
    """Return how endpoints may write the credential in a header; nothing if its value is clearly not one."""
    if name.lower() in _PLAIN or _MEDIA_TYPES.fullmatch(value):
        return frozenset()
    if not _NAMED.search(name) and (len(value) < MIN_UNNAMED_CHARACTERS or _WORDS.fullmatch(value)):
        return frozenset()
    scheme = _SCHEME.fullmatch(value)
    bare = scheme.group(1) if scheme else value
    return frozenset(form.encode() for text in (value, bare) if len(text) >= MIN_CHARACTERS for form in _escaped(text))


def _escaped(text: str) -> set[str]:
    """Return a text as it is, in JSON as different writers escape it, and in a URL."""
    as_json = json.dumps(text)[1:-1]
    as_codes = json.dumps(_ESCAPED_BY_SOME.sub(lambda found: f"\0{ord(found.group()):04X}", text))[1:-1]
    upper = as_codes.replace("\\u0000", "\\u")
    lower = _ESCAPED_BY_SOME.sub(lambda found: f"\\u{ord(found.group()):04x}", text.replace("\\", "\\\\"))
    return {text, as_json, as_json.replace("/", "\\/"), upper, lower, quote(text, safe="")}
