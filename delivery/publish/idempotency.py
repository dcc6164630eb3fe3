"""Idempotency keys: the same publish twice is stored once and gets the same answer (contract 2.6)."""

import hashlib
from collections.abc import Collection, Mapping, Sequence
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
  FROM json_to_recordset(%(uses)s::json)
    AS a (key text, fingerprint text, message_id bigint, outcome text, deliveries int)
ON CONFLICT (publisher_id, key) DO UPDATE
   SET fingerprint = excluded.fingerprint, message_id = excluded.message_id, outcome = excluded.outcome,
       deliveries_count = excluded.deliveries_count, expires_at = excluded.expires_at
"""
FORGET: Final = "DELETE FROM delivery_idempotencykey WHERE expires_at <= clock_timestamp() RETURNING id"


class PublishInProgress(Exception):
    """Another publish with this idempotency key has not been answered yet."""


class KeyUse(NamedTuple):
    """The publish that a key was used for, and its answer."""

    fingerprint: bytes
    message_id: int
    outcome: str
    deliveries: int


def fingerprint_of(parts: Sequence[bytes | str | None]) -> bytes:
    """Return SHA-256 over the parts that make two publishes the same; order matters, and None is not empty."""
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        digest.update(b"-" if data is None else b"%d:" % len(data))
        digest.update(data or b"")
    return digest.digest()


def claim_keys(publisher_id: int | None, keys: Collection[str]) -> dict[str, KeyUse]:
    """Claim the keys until the transaction ends; return the earlier uses.

    Never waits: it raises `PublishInProgress` while the first publish with one of them runs. The locks end with their
    transaction or connection.
    """
    if not keys:
        return {}
    ((refused,),) = rows(TRY_LOCKS, [publisher_id or 0, sorted(keys)])
    if refused:
        raise PublishInProgress
    # A statement of its own: it sees what was committed before the locks.
    found = rows(EARLIER, [publisher_id, sorted(keys)])
    return {key: KeyUse(bytes(fingerprint), *answer) for key, fingerprint, *answer in found}


def remember(publisher_id: int | None, uses: Mapping[str, KeyUse], *, hours: int) -> None:
    """Store the answers by key, in the publish's own transaction."""
    if uses:
        kept = [use._asdict() | {"key": key, "fingerprint": use.fingerprint.hex()} for key, use in uses.items()]
        rows(REMEMBER, {"publisher": publisher_id, "uses": orjson.dumps(kept).decode(), "hours": hours})


def forget_expired() -> None:
    """Delete the keys that have expired."""
    rows(FORGET)
