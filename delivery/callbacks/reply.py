"""Taking an endpoint's reply: stored once, passed on through a chain, lined up for the original URL (6.8 to 6.10)."""

from collections.abc import Sequence
from functools import partial
from typing import Final, NamedTuple

import orjson
from django.db import transaction

from broker_project.core.db import rows
from delivery.callbacks.address import MAX_DEPTH, hash_of
from delivery.dispatch import notify
from delivery.publish.draft import Draft, check_metadata
from delivery.publish.idempotency import fingerprint_of
from delivery.webhook.headers_policy import Header, kept

CHAIN: Final = """
WITH RECURSIVE chain AS (
  SELECT id, parent_id FROM delivery_callback WHERE token_hash = %b
  UNION ALL
  SELECT c.id, c.parent_id FROM chain JOIN delivery_callback c ON c.id = chain.parent_id)
SELECT c.id, c.url, c.expires_at <= clock_timestamp(), c.reply_id, c.reply_fingerprint
  FROM (SELECT id FROM chain LIMIT %s) chain JOIN delivery_callback c ON c.id = chain.id
 ORDER BY c.depth DESC FOR NO KEY UPDATE OF c
"""
"""The callback replied to, then those it is passed on to; locked in this order, in which everybody locks them.

Limited, or the planner would expect so many that it reads all there are.
"""

STORE: Final = """
WITH ids AS MATERIALIZED (
  SELECT nextval('delivery_message_id_seq') AS reply_id, nextval('delivery_delivery_id_seq') AS delivery_id,
         clock_timestamp() AS at),
reply AS MATERIALIZED (SELECT %(body)b::bytea AS body),
stored AS (
  INSERT INTO delivery_message (id, event_type_id, publisher_id, body, size, content_type, headers, answers, outcome,
                                deliveries_count, published_at)
  SELECT i.reply_id, c.event_type_id, c.publisher_id, r.body, octet_length(r.body), %(content_type)s,
         %(headers)s::jsonb, c.message_id, 'ROUTED', 1, i.at
    FROM ids i, reply r, delivery_callback c WHERE c.id = %(last)s),
lined_up AS (
  INSERT INTO delivery_line (lane, callback_id, head_id) SELECT 'callback', %(last)s, delivery_id FROM ids
  RETURNING id),
waiting AS (
  INSERT INTO delivery_open (id, message_id, line_id, status, size)
  SELECT i.delivery_id, i.reply_id, l.id, 'PENDING', octet_length(r.body) FROM ids i, reply r, lined_up l),
replied AS (
  UPDATE delivery_callback c
     SET reply_id = i.reply_id, reply_fingerprint = %(fingerprint)b, replied_at = i.at,
         expires_at = i.at + make_interval(days => %(days)s::int),
         delivery_id = CASE WHEN c.id = %(last)s THEN i.delivery_id END
    FROM ids i WHERE c.id = ANY(%(chain)s::bigint[]))
SELECT i.reply_id, l.id FROM ids i, lined_up l
"""
"""The reply as a message, its delivery as the head of a line of its own, and a note on every callback it passes."""

JOIN_REPLY: Final = """
UPDATE delivery_callback SET reply_id = %s, reply_fingerprint = %b, replied_at = clock_timestamp() WHERE id = ANY(%s)
"""


class UnknownCallback(Exception):
    """No callback has this token."""


class CallbackExpired(Exception):
    """Nobody has replied in time."""


class CallbackAnswered(Exception):
    """Another reply was there first, through this address or through another that leads to the same callback."""


class Replied(NamedTuple):
    """What is answered to a reply."""

    id: int
    """The id under which it is stored as a message."""
    is_new: bool
    """Whether it was not known yet."""


class _Callback(NamedTuple):
    id: int
    url: str
    is_expired: bool
    reply_id: int | None
    fingerprint: bytes | None


def reply(token: str, body: bytes, content_type: str, headers: Sequence[Header], *, days: int) -> Replied:
    """Store the reply to a callback, with its delivery to the original URL, and wake its line.

    The same reply again is not stored again. `days` is how long it is tried to be delivered.

    Raises:
        UnknownCallback, CallbackExpired, CallbackAnswered: it cannot be taken; nothing was stored.
        InvalidMetadata: its headers or its content type are unusable.

    """
    check_metadata(Draft("", body, content_type, headers))
    fingerprint = fingerprint_of([content_type, body])
    with transaction.atomic():
        chain = [_Callback(*columns) for columns in rows(CHAIN, [hash_of(token), MAX_DEPTH])]
        if answered := _answered(chain, fingerprint):
            reply_id, unanswered = answered
            if unanswered:
                rows(JOIN_REPLY, [reply_id, fingerprint, unanswered])
            return Replied(reply_id, is_new=False)
        columns = {
            "body": body,
            "content_type": content_type,
            "headers": orjson.dumps(kept(headers)).decode(),
            "fingerprint": fingerprint,
            "chain": [one.id for one in chain],
            "last": chain[-1].id,
            "days": days,
        }
        ((reply_id, line_id),) = rows(STORE, columns)
        transaction.on_commit(partial(notify.wake, notify.CALLBACKS, [line_id]), robust=True)
    return Replied(reply_id, is_new=True)


def _answered(chain: Sequence[_Callback], fingerprint: bytes) -> tuple[int, list[int]] | None:
    """Return what the chain has been answered with if it is this reply, and the callbacks that do not have it yet.

    None where no callback of the chain has a reply. Raises what `reply` raises.
    """
    if not chain:
        raise UnknownCallback("No callback has this address.")
    unanswered: list[int] = []
    for one in chain:
        if one.reply_id is not None and one.fingerprint == fingerprint:
            return one.reply_id, unanswered
        if one.reply_id is not None:
            raise CallbackAnswered("This callback has had another reply; the first one counts.")
        if one.is_expired or (one is chain[-1] and not one.url):
            raise CallbackExpired("The time for a reply is over.")
        unanswered.append(one.id)
    return None
