"""Making callbacks at publish: one for each group of a QUEUE message with a `CallbackURL` (contract 6.7, 6.9)."""

import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from django.core.exceptions import ValidationError

from broker_project.core.db import rows
from delivery.callbacks.address import (
    MAX_DEPTH,
    TOKEN_BYTES,
    CallbackTerms,
    hash_of,
    is_own,
    sealed_token,
    token_in,
    token_of,
)
from delivery.publish.errors import KindNotServed, Refusal, RefusedItems, UnsuitableCallback
from subscriptions.endpoints import check_reach

OURS: Final = """
WITH RECURSIVE chain AS (
  SELECT token_hash, id, depth, expires_at <= clock_timestamp() AS is_expired, reply_id, parent_id
    FROM delivery_callback WHERE token_hash = ANY(%b)
  UNION ALL
  SELECT o.token_hash, o.id, o.depth, o.is_expired, c.reply_id, c.parent_id
    FROM chain o JOIN delivery_callback c ON c.id = o.parent_id)
SELECT token_hash, id, depth, is_expired, count(reply_id) > 0 FROM chain GROUP BY token_hash, id, depth, is_expired
"""
"""Whether there is a reply already, here or at one that this is passed on to: another would not be taken."""

GROUPS: Final = """
SELECT DISTINCT d.group_id, d.message_id FROM unnest(%s::bigint[]) AS m (id)
  JOIN delivery_open d ON d.message_id = m.id AND d.closed_on = '9999-12-31' AND d.group_id IS NOT NULL
 ORDER BY d.group_id
"""

MAKE: Final = """
INSERT INTO delivery_callback (group_id, message_id, event_type_id, publisher_id, url, parent_id, depth, token_hash,
                               token_sealed, expires_at)
SELECT n.group_id, n.message_id, n.event_type_id, %(publisher)s, n.url, n.parent_id, n.depth, n.token_hash, n.sealed,
       LEAST(clock_timestamp() + make_interval(days => %(days)s::int), p.expires_at)
  FROM unnest(%(groups)s::bigint[], %(messages)s::bigint[], %(event_types)s::bigint[], %(urls)s::text[],
              %(parents)s::bigint[], %(depths)s::int[], %(hashes)b::bytea[], %(sealed)b::bytea[])
         AS n (group_id, message_id, event_type_id, url, parent_id, depth, token_hash, sealed)
  LEFT JOIN delivery_callback p ON p.id = n.parent_id
"""
"""One that is passed on to another lives no longer than that."""


@dataclass(frozen=True, slots=True)
class CallbackTarget:
    """Where the replies to a message's callbacks go."""

    url: str
    """Empty: to `parent_id`, another callback of ours."""
    parent_id: int | None = None
    depth: int = 1


class _Ours(NamedTuple):
    id: int
    depth: int
    is_expired: bool
    is_answered: bool


class CallbackRequest(NamedTuple):
    """A stored message whose groups get callbacks."""

    event_type_id: int
    target: CallbackTarget


def targets_of(urls: Mapping[int, str], terms: CallbackTerms, *, total: int) -> dict[int, CallbackTarget]:
    """Return where replies go for each `CallbackURL`, by the position of its message among `total`.

    An address that bears a token of ours is ours, by whatever name the broker was called: nobody else has it.

    Raises:
        RefusedItems: some cannot be used; it says which and why. None can while the broker does not know its address.

    """
    tokens = {url: hash_of(token) for url in urls.values() if (token := token_in(url))}
    found = rows(OURS, [sorted({*tokens.values()})]) if tokens else []
    ours = {bytes(token_hash): _Ours(*columns) for token_hash, *columns in found}
    targets: dict[int, CallbackTarget] = {}
    refusals: dict[int, Refusal] = {}
    for position, url in urls.items():
        try:
            own = ours.get(tokens.get(url, b""))
            targets[position] = _passed_on(own) if own else _external(url, terms)
        except Refusal as refusal:
            refusals[position] = refusal
    if refusals:
        raise RefusedItems(refusals, total)
    return targets


def create_callbacks(wanted: Mapping[int, CallbackRequest], publisher_id: int | None, terms: CallbackTerms) -> None:
    """Make a callback for each group of the messages, by id, that this transaction has stored."""
    groups = rows(GROUPS, [sorted(wanted)]) if wanted else []
    if not groups:
        return
    tokens = [token_of(secrets.token_bytes(TOKEN_BYTES)) for _ in groups]
    of_groups = [wanted[message_id] for _, message_id in groups]
    columns = {
        "groups": [group_id for group_id, _ in groups],
        "messages": [message_id for _, message_id in groups],
        "event_types": [one.event_type_id for one in of_groups],
        "urls": [one.target.url for one in of_groups],
        "parents": [one.target.parent_id for one in of_groups],
        "depths": [one.target.depth for one in of_groups],
        "hashes": [hash_of(token) for token in tokens],
        "sealed": [sealed_token(token, terms.keys) for token in tokens],
    }
    rows(MAKE, {**columns, "publisher": publisher_id, "days": terms.days})


def _external(url: str, terms: CallbackTerms) -> CallbackTarget:
    if not terms.public_url:
        raise KindNotServed("Callbacks are not served: this broker has not been told its address, BROKER_PUBLIC_URL.")
    if is_own(url, terms.public_url):
        raise UnsuitableCallback("The CallbackURL is one of this broker's own addresses, but no callback has it.")
    try:
        check_reach(url, terms.reach)
    except ValidationError as refused:
        raise UnsuitableCallback(f"The CallbackURL cannot be used. {refused.message}") from None
    return CallbackTarget(url)


def _passed_on(ours: _Ours) -> CallbackTarget:
    if ours.is_answered:
        raise UnsuitableCallback("The CallbackURL is a callback of this broker that has had its reply.")
    if ours.is_expired:
        raise UnsuitableCallback("The CallbackURL is a callback of this broker that has expired.")
    if ours.depth >= MAX_DEPTH:
        raise UnsuitableCallback(f"The CallbackURL would make a chain of more than {MAX_DEPTH} callbacks.")
    return CallbackTarget("", ours.id, ours.depth + 1)
