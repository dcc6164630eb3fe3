"""Idempotency keys: the same publish twice gets one message and one answer (contract 2.6)."""

import hashlib
from collections.abc import Collection, Sequence
from typing import Final, NamedTuple

import orjson

from broker_project.core.db import rows

TRY_LOCKS: Final = """
SELECT count(*) FILTER (WHERE NOT pg_try_advisory_xact_lock(hashtextextended(key, %s)))
  FROM unnest(%s::text[]) AS k (key)
"""
EARLIER: Final = """
SELECT key, fingerprint, message_id, outcome, deliveries_count FROM delivery_idempotencykey
 WHERE publisher_id IS NOT DISTINCT FROM %s AND key = ANY(%s) AND expires_at > clock_timestamp()
"""
REMEMBER: Final = """
INSERT INTO delivery_idempotencykey (publisher_id, key, fingerprint, message_id, outcome, deliveries_count, expires_at)
SELECT %(publisher)s, key, decode(fingerprint, 'hex'), message_id, outcome, deliveries,
       clock_timestamp() + make_interval(hours => %(hours)s::int)
  FROM json_to_recordset(%(answered)s::json)
    AS a (key text, fingerprint text, message_id bigint, outcome text, deliveries int)
ON CONFLICT (publisher_id, key) DO UPDATE
   SET fingerprint = excluded.fingerprint, message_id = excluded.message_id, outcome = excluded.outcome,
       deliveries_count = excluded.deliveries_count, expires_at = excluded.expires_at
"""
FORGET: Final = "DELETE FROM delivery_idempotencykey WHERE expires_at <= clock_timestamp() RETURNING id"


class PublishUnderWayError(Exception):
    """Another publish with this idempotency key has not been answered yet."""


class Earlier(NamedTuple):
    """What was answered the first time."""

    message_id: int
    outcome: str
    deliveries: int


class Claimed(NamedTuple):
    """A key that has been used before: what for, and what was answered."""

    fingerprint: bytes
    answer: Earlier


def fingerprint_of(parts: Sequence[bytes | str | None]) -> bytes:
    """Return SHA-256 over the parts that make two publishes the same; their order and absence count."""
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        digest.update(b"-" if data is None else b"%d:" % len(data))
        digest.update(data or b"")
    return digest.digest()


def claim_keys(publisher_id: int | None, keys: Collection[str]) -> dict[str, Claimed]:
    """Claim the keys until the transaction ends; return those that were used before.

    Never waits: the locks die with their transaction or connection, so a key is never blocked for longer than the
    first publish runs.

    Raises:
        PublishUnderWayError: the first publish with one of them is still running.

    """
    if not keys:
        return {}
    ((refused,),) = rows(TRY_LOCKS, [publisher_id or 0, sorted(keys)])
    if refused:
        raise PublishUnderWayError
    found = rows(
        EARLIER, [publisher_id, sorted(keys)]
    )  # a statement of its own: it sees what was committed before the locks
    return {key: Claimed(bytes(fingerprint), Earlier(*answer)) for key, fingerprint, *answer in found}


class RememberedAnswer(NamedTuple):
    """What is kept of a publish that carried a key."""

    key: str
    fingerprint: bytes
    answer: Earlier


def remember(publisher_id: int | None, answered: Sequence[RememberedAnswer], *, hours: int) -> None:
    """Keep what is answered, in the publish's own transaction."""
    if answered:
        kept = [{"key": one.key, "fingerprint": one.fingerprint.hex(), **one.answer._asdict()} for one in answered]
        rows(REMEMBER, {"publisher": publisher_id, "answered": orjson.dumps(kept).decode(), "hours": hours})


def forget_expired() -> int:
    """Delete the keys whose time is over; return how many."""
    return len(rows(FORGET))
