"""Accept an endpoint's reply: store it, pass it on through a chain, queue it for the original URL (6.8 to 6.10)."""

from collections.abc import Sequence
from typing import Final, NamedTuple

import orjson
from django.db import transaction

from broker_project.core.db import rows
from delivery.believed_clock import is_doubted
from delivery.callbacks.address import MAX_DEPTH, hash_of
from delivery.dispatch import notify
from delivery.limits import MAX_CRASHES
from delivery.publish.draft import Draft, check_metadata
from delivery.publish.idempotency import fingerprint_of
from delivery.webhook.content import Header, kept

CHAIN: Final = """
WITH RECURSIVE chain AS (
  SELECT id, parent_id FROM delivery_callback WHERE token_hash = %s
  UNION ALL
  SELECT c.id, c.parent_id FROM chain JOIN delivery_callback c ON c.id = chain.parent_id)
SELECT c.id, c.url, (c.expires_at <= clock_timestamp()) IS TRUE, c.reply_id, c.reply_fingerprint
  FROM (SELECT id FROM chain LIMIT %s) chain JOIN delivery_callback c ON c.id = chain.id
 ORDER BY c.depth DESC FOR NO KEY UPDATE OF c
"""
"""The callback replied to, then those that it is passed on to. All transactions lock them in this order.

Without LIMIT the planner expects many rows and scans the table.
"""

STORE: Final = """
WITH ids AS MATERIALIZED (
  SELECT nextval('delivery_message_id_seq') AS reply_id, next_delivery_id() AS delivery_id,
         clock_timestamp() AS at, clock_timestamp() + make_interval(days => %(days)s::int) AS expires_at),
reply AS MATERIALIZED (SELECT %(body)s::bytea AS body),
stored AS (
  INSERT INTO delivery_message (id, event_type_id, publisher_id, body, size, content_type, headers, answers, outcome,
                                deliveries_count, published_at)
  SELECT i.reply_id, c.event_type_id, c.publisher_id, r.body, octet_length(r.body), %(content_type)s,
         %(headers)s::jsonb, c.message_id, 'ROUTED', 1, i.at
    FROM ids i, reply r, delivery_callback c WHERE c.id = %(last)s),
lined_up AS (
  INSERT INTO delivery_line (lane, callback_id) VALUES ('callback', %(last)s) RETURNING id),
held AS (
  INSERT INTO delivery_hold (delivery_id, line_id) SELECT i.delivery_id, l.id FROM ids i, lined_up l),
waiting AS (
  INSERT INTO delivery_open (id, message_id, line_id, status, size, expires_at)
  SELECT i.delivery_id, i.reply_id, l.id, 'PENDING', octet_length(r.body), i.expires_at
    FROM ids i, reply r, lined_up l),
replied AS (
  UPDATE delivery_callback c
     SET reply_id = i.reply_id, reply_fingerprint = %(fingerprint)s, replied_at = i.at, expires_at = i.expires_at,
         delivery_id = CASE WHEN c.id = %(last)s THEN i.delivery_id END
    FROM ids i WHERE c.id = ANY(%(chain)s::bigint[]))
SELECT i.reply_id, l.id FROM ids i, lined_up l
"""
"""Stores the reply as a message, its delivery in a line of its own, and marks every callback of the chain."""

SEND_AGAIN: Final = f"""
WITH again AS (
  UPDATE delivery_callback c
     SET delivery_id = next_delivery_id(),
         expires_at = clock_timestamp() + make_interval(days => %(days)s::int)
   WHERE c.reply_id = %(reply)s AND c.delivery_id = %(delivery)s
  RETURNING c.id, c.delivery_id, c.expires_at),
lined_up AS (
  INSERT INTO delivery_line (lane, callback_id) SELECT 'callback', id FROM again
  ON CONFLICT (callback_id) DO UPDATE SET lane = excluded.lane
  RETURNING id),
held AS (
  INSERT INTO delivery_hold (delivery_id, line_id) SELECT a.delivery_id, l.id FROM again a, lined_up l),
waiting AS (
  INSERT INTO delivery_open (id, message_id, line_id, status, size, expires_at, resubmit_of, crash_count)
  SELECT a.delivery_id, m.id, l.id, 'PENDING', m.size, a.expires_at, %(delivery)s,
         CASE WHEN EXISTS (SELECT FROM delivery_delivery d WHERE d.id = %(delivery)s AND d.status = 'FAILED')
              THEN {MAX_CRASHES} ELSE 0 END
    FROM again a, lined_up l, delivery_message m WHERE m.id = %(reply)s)
SELECT a.delivery_id, l.id FROM again a, lined_up l
"""
"""Its line may still be there, or be claimed: it is not deleted before this has ended, nor afterwards.

A reply fails only as a poison message, so it is sent in a process of its own again (contract 4.19).
"""

JOIN_REPLY: Final = """
UPDATE delivery_callback SET reply_id = %s, reply_fingerprint = %s, replied_at = clock_timestamp() WHERE id = ANY(%s)
"""


class UnknownCallback(Exception):
    """No callback has this token."""


class CallbackExpired(Exception):
    """The time for a reply is over."""


class CallbackAnswered(Exception):
    """A different reply came first, through this address or another one that leads to the same callback."""


class Replied(NamedTuple):
    """The answer to a reply."""

    id: int
    """The id of the message that the reply is stored as."""
    is_new: bool
    """False: the same reply was stored before."""


class _Callback(NamedTuple):
    """A row of `CHAIN`."""

    id: int
    url: str
    is_expired: bool
    reply_id: int | None
    fingerprint: bytes | None


def reply(token: str, body: bytes, content_type: str, headers: Sequence[Header], *, days: int) -> Replied:
    """Store the reply to a callback, with its delivery to the original URL, and wake its line.

    The same reply is not stored twice. `days` is how long delivering it is tried.

    Raises:
        UnknownCallback, CallbackExpired, CallbackAnswered: it cannot be accepted; nothing was stored.
        InvalidMetadata: its headers or its content type are unusable.
    """
    check_metadata(Draft("", body, content_type, headers))
    fingerprint = fingerprint_of([content_type, body])
    with transaction.atomic():
        chain = [_Callback(*row) for row in rows(CHAIN, [hash_of(token), MAX_DEPTH])]
        reply_id, unanswered = _earlier(chain, fingerprint)
        if reply_id is not None:
            if unanswered:
                rows(JOIN_REPLY, [reply_id, fingerprint, unanswered])
            return Replied(reply_id, is_new=False)
        columns = {
            "body": body,
            "content_type": content_type,
            "headers": orjson.dumps(kept(headers)).decode(),
            "fingerprint": fingerprint,
            "chain": unanswered,
            "last": chain[-1].id,
            "days": days,
        }
        ((reply_id, line_id),) = rows(STORE, columns)
        notify.wake_after_commit([(notify.CALLBACKS, line_id)])
    return Replied(reply_id, is_new=True)


def send_again(delivery_id: int, reply_id: int, *, days: int) -> list[int]:
    """Queue a reply whose delivery has ended as a new delivery, in the open transaction; return the id of that.

    Empty if that was not the last delivery of the reply, or its callback is no longer kept. `days` is how long
    delivering it is tried.
    """
    found = rows(SEND_AGAIN, {"reply": reply_id, "delivery": delivery_id, "days": days})
    notify.wake_after_commit((notify.CALLBACKS, line_id) for _, line_id in found)
    return [new_id for new_id, _ in found]


def _earlier(chain: Sequence[_Callback], fingerprint: bytes) -> tuple[int | None, list[int]]:
    """Return the id of this reply if it is stored already, and the chain's callbacks without a reply.

    Only the callback that was replied to may not have expired: its endpoint may have got its job later than the others.

    Raises what `reply` raises.
    """
    if not chain:
        raise UnknownCallback("No callback has this address.")
    unanswered: list[int] = []
    for callback in chain:
        if callback.reply_id is not None and callback.fingerprint == fingerprint:
            return callback.reply_id, unanswered
        if callback.reply_id is not None:
            raise CallbackAnswered("This callback has had another reply; the first one counts.")
        is_late = callback is chain[0] and callback.is_expired and not is_doubted()
        if is_late or (callback is chain[-1] and not callback.url):
            raise CallbackExpired("The time for a reply is over.")
        unanswered.append(callback.id)
    return None, unanswered
