"""Create callbacks at publish: one for each group of a QUEUE message with a `CallbackURL` (contract 6.7, 6.9)."""

import secrets
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from django.core.exceptions import ValidationError

from broker_project.core.db import rows
from delivery.believed_clock import is_doubted
from delivery.callbacks.address import MAX_DEPTH, TOKEN_BYTES, CallbackTerms, encrypted_token, hash_of, is_own, token_in
from delivery.publish.errors import CallbacksNotConfigured, Refusal, RefusedItems, UnsuitableCallback
from subscriptions.endpoints import check_reach

OWN: Final = """
WITH RECURSIVE chain AS (
  SELECT token_hash, id, depth, (expires_at <= clock_timestamp()) IS TRUE AS is_expired, reply_id, parent_id
    FROM delivery_callback WHERE token_hash = ANY(%s)
  UNION ALL
  SELECT o.token_hash, o.id, o.depth, o.is_expired, c.reply_id, c.parent_id
    FROM chain o JOIN delivery_callback c ON c.id = o.parent_id)
SELECT token_hash, id, depth, is_expired, count(reply_id) > 0 FROM chain GROUP BY token_hash, id, depth, is_expired
"""
"""The last column: whether it, or a callback that it is passed on to, has a reply; a second one is not accepted."""

GROUPS: Final = """
SELECT DISTINCT d.group_id, d.message_id FROM unnest(%s::bigint[]) AS m (id)
  JOIN delivery_open d ON d.message_id = ANY (ARRAY[m.id]) AND d.group_id IS NOT NULL
 ORDER BY d.group_id
"""

CREATE: Final = """
INSERT INTO delivery_callback (group_id, message_id, event_type_id, publisher_id, url, parent_id, depth, token_hash,
                               token_sealed)
SELECT * FROM unnest(%(groups)s::bigint[], %(messages)s::bigint[], %(event_types)s::bigint[], %(publishers)s::bigint[],
                     %(urls)s::text[], %(parents)s::bigint[], %(depths)s::int[], %(hashes)s::bytea[],
                     %(encrypted)s::bytea[])
"""


class CallbackTarget(NamedTuple):
    """Where the replies to a message's callbacks go."""

    url: str
    """Empty: to `parent_id`, another callback of ours."""
    parent_id: int | None = None
    depth: int = 1


class CallbackRequest(NamedTuple):
    """A stored message whose groups get callbacks."""

    message_id: int
    event_type_id: int
    publisher_id: int | None
    target: CallbackTarget


class _OwnCallback(NamedTuple):
    """A row of `OWN`, after the hash."""

    id: int
    depth: int
    is_expired: bool
    has_reply: bool


def targets_of(urls: Mapping[int, str], terms: CallbackTerms, *, total: int) -> dict[int, CallbackTarget]:
    """Return where replies go for each `CallbackURL`, by the position of its message among `total`.

    An address with a token of this broker is its own under every host name: no other server knows the token. Raises
    `RefusedItems`, which says which cannot be used and why.
    """
    tokens = {url: hash_of(token) for url in urls.values() if (token := token_in(url))}
    found = rows(OWN, [sorted({*tokens.values()})]) if tokens else []
    own = {bytes(token_hash): _OwnCallback(*columns) for token_hash, *columns in found}
    targets: dict[int, CallbackTarget] = {}
    refusals: dict[int, Refusal] = {}
    for position, url in urls.items():
        try:
            targets[position] = _target(url, own.get(tokens.get(url, b"")), terms)
        except Refusal as refusal:
            refusals[position] = refusal
    if refusals:
        raise RefusedItems(refusals, total)
    return targets


def _target(url: str, own: _OwnCallback | None, terms: CallbackTerms) -> CallbackTarget:
    if own:
        if own.has_reply:
            raise UnsuitableCallback("The CallbackURL is a callback of this broker that has had its reply.")
        if own.is_expired and not is_doubted():
            raise UnsuitableCallback("The CallbackURL is a callback of this broker that has expired.")
        if own.depth >= MAX_DEPTH:
            raise UnsuitableCallback(f"The CallbackURL would make a chain of more than {MAX_DEPTH} callbacks.")
        return CallbackTarget("", own.id, own.depth + 1)
    if not terms.public_url:
        raise CallbacksNotConfigured("Callbacks are not served: BROKER_PUBLIC_URL, this broker's address, is not set.")
    if is_own(url, terms.public_url):
        raise UnsuitableCallback("The CallbackURL is one of this broker's own addresses, but no callback has it.")
    try:
        check_reach(url, terms.egress)
    except ValidationError as refused:
        raise UnsuitableCallback(f"The CallbackURL cannot be used. {refused.message}") from None
    return CallbackTarget(url)


def create_callbacks(requests: Sequence[CallbackRequest], terms: CallbackTerms) -> None:
    """Create a callback for each group of the messages, which this transaction has stored."""
    by_message = {one.message_id: one for one in requests}
    groups = rows(GROUPS, [sorted(by_message)]) if by_message else []
    if not groups:
        return
    tokens = [secrets.token_urlsafe(TOKEN_BYTES) for _ in groups]
    asked = [by_message[message_id] for _, message_id in groups]
    columns = {
        "groups": [group_id for group_id, _ in groups],
        "messages": [message_id for _, message_id in groups],
        "event_types": [one.event_type_id for one in asked],
        "publishers": [one.publisher_id for one in asked],
        "urls": [one.target.url for one in asked],
        "parents": [one.target.parent_id for one in asked],
        "depths": [one.target.depth for one in asked],
        "hashes": [hash_of(token) for token in tokens],
        "encrypted": [encrypted_token(token, terms.keys) for token in tokens],
    }
    rows(CREATE, columns)
