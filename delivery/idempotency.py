"""Idempotency keys: the same publish twice gets one message and one answer (behaviour 2.6)."""

import hashlib
from collections.abc import Sequence
from typing import Final, NamedTuple

from subscriptions.database import rows

TRY_LOCK: Final = "SELECT pg_try_advisory_xact_lock(hashtextextended(%s, %s))"
EARLIER: Final = """
SELECT fingerprint, message_id, outcome, deliveries_count FROM delivery_idempotencykey
 WHERE publisher_id IS NOT DISTINCT FROM %s AND key = %s AND expires_at > clock_timestamp()
"""
REMEMBER: Final = """
INSERT INTO delivery_idempotencykey (publisher_id, key, fingerprint, message_id, outcome, deliveries_count, expires_at)
VALUES (%s, %s, %s, %s, %s, %s, clock_timestamp() + make_interval(hours => %s::int))
ON CONFLICT (publisher_id, key) DO UPDATE
   SET fingerprint = excluded.fingerprint, message_id = excluded.message_id, outcome = excluded.outcome,
       deliveries_count = excluded.deliveries_count, expires_at = excluded.expires_at
"""
FORGET: Final = "DELETE FROM delivery_idempotencykey WHERE expires_at <= clock_timestamp() RETURNING id"


class PublishUnderWayError(Exception):
    """Another publish with this idempotency key has not been answered yet."""


class KeyReusedError(Exception):
    """This idempotency key stands for another publish."""


class Earlier(NamedTuple):
    """What was answered the first time."""

    message_id: int
    outcome: str
    deliveries: int


def fingerprint_of(parts: Sequence[bytes | str | None]) -> bytes:
    """Return SHA-256 over the parts that make two publishes the same; their order and absence count."""
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        digest.update(b"-" if data is None else b"%d:" % len(data))
        digest.update(data or b"")
    return digest.digest()


def claim_key(publisher_id: int | None, key: str, fingerprint: bytes) -> Earlier | None:
    """Claim the key until the transaction ends; return what was answered to the same publish before, if it was.

    Never waits: the lock dies with its transaction or connection, so a key is never blocked for longer than the first
    publish runs.

    Raises:
        PublishUnderWayError: the first publish is still running.
        KeyReusedError: the key stands for another publish.

    """
    ((granted,),) = rows(TRY_LOCK, [key, publisher_id or 0])
    if not granted:
        raise PublishUnderWayError
    for known, *answer in rows(EARLIER, [publisher_id, key]):
        if bytes(known) != fingerprint:
            raise KeyReusedError
        return Earlier(*answer)
    return None


def remember(publisher_id: int | None, key: str, fingerprint: bytes, answer: Earlier, *, hours: int) -> None:
    """Keep what is answered, in the publish's own transaction."""
    rows(REMEMBER, [publisher_id, key, fingerprint, *answer, hours])


def forget_expired() -> int:
    """Delete the keys whose time is over; return how many."""
    return len(rows(FORGET))
