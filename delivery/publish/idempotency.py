"""Idempotency keys: the same publish twice is stored once and gets the same answer (contract 2.6)."""

import hashlib
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final, NamedTuple

import orjson

from broker_project.core.db import rows
from delivery.believed_clock import BELIEVED_CLOCK


class Key(NamedTuple):
    """An idempotency key; each publisher has its own."""

    publisher_id: int | None
    """None: published with a management key."""
    text: str


_TAKES_LOCK: Final = "pg_try_advisory_xact_lock(hashtextextended('key ' || key, COALESCE(publisher_id, 0)))"
TRY_LOCKS: Final = f"""
SELECT number FROM unnest(%(publishers)s::bigint[], %(keys)s::text[]) WITH ORDINALITY AS k (publisher_id, key, number)
 WHERE NOT {_TAKES_LOCK}
"""
EARLIER: Final = """
SELECT k.number, i.fingerprint, i.message_id, i.outcome, i.deliveries_count
  FROM unnest(%(publishers)s::bigint[], %(keys)s::text[]) WITH ORDINALITY AS k (publisher_id, key, number)
 CROSS JOIN LATERAL (
   SELECT * FROM delivery_idempotencykey i
    WHERE i.key = k.key AND i.publisher_id IS NOT DISTINCT FROM k.publisher_id
    LIMIT 1) i
"""
_INSERT_USES: Final = """
INSERT INTO delivery_idempotencykey (publisher_id, key, fingerprint, message_id, outcome, deliveries_count, expires_at)
SELECT publisher_id, key, decode(fingerprint, 'hex'), message_id, outcome, deliveries_count,
       clock_timestamp() + make_interval(hours => %(hours)s::int)
  FROM"""
REMEMBER: Final = f"""{_INSERT_USES} json_to_recordset(%(uses)s::json)
    AS a (publisher_id bigint, key text, fingerprint text, message_id bigint, outcome text, deliveries_count int)
"""
REMEMBER_NEW: Final = f"""{_INSERT_USES} (SELECT id AS message_id, * FROM message) m
 WHERE (SELECT true FROM delivery_idempotencykey i
         WHERE i.key = m.key AND i.publisher_id IS NOT DISTINCT FROM m.publisher_id LIMIT 1) IS NULL
   AND {_TAKES_LOCK}
 ORDER BY position
    ON CONFLICT (key, publisher_id) DO NOTHING
RETURNING message_id"""
"""Stores the answers of those rows of a CTE `message` whose keys nobody uses; returns their ids.

The insert finds also what was committed after the statement's snapshot. The look-up and the lock keep it from waiting:
for somebody who deletes the key, and for another publish with it.
"""
ARE_EXPIRED: Final = """
  (SELECT id FROM delivery_idempotencykey WHERE expires_at <= (SELECT clock_timestamp()) ORDER BY expires_at LIMIT 1)
    IS NOT NULL"""
FORGET: Final = """
DELETE FROM delivery_idempotencykey WHERE id = ANY (ARRAY(
  SELECT id FROM delivery_idempotencykey WHERE expires_at <= %s
   ORDER BY expires_at LIMIT 5000 FOR UPDATE SKIP LOCKED))
RETURNING id
"""


class PublishInProgress(Exception):
    """Another publish with this idempotency key has not been answered yet."""


class KeyUse(NamedTuple):
    """The publish that a key was used for, and its answer."""

    fingerprint: bytes
    message_id: int
    outcome: str
    deliveries_count: int


def fingerprint_of(parts: Sequence[bytes | str | None]) -> bytes:
    """Return SHA-256 over the parts that make two publishes the same; order matters, and None is not empty."""
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        digest.update(b"-" if data is None else b"%d:" % len(data))
        digest.update(data or b"")
    return digest.digest()


def claim_keys(keys: Collection[Key]) -> tuple[dict[Key, KeyUse], set[Key]]:
    """Claim the keys until the transaction ends; return the earlier uses, and the keys that could not be claimed.

    Never waits: a key cannot be claimed while the first publish with it runs. The locks end with their transaction or
    connection.
    """
    if not keys:
        return {}, set()
    places = [*keys]
    refused = {places[number - 1] for (number,) in rows(TRY_LOCKS, _columns(places))}
    # A statement of its own: it sees what was committed before the locks. A use that is there needs none: it stays.
    uses = earlier_uses(places)
    return uses, refused - uses.keys()


def earlier_uses(keys: Sequence[Key]) -> dict[Key, KeyUse]:
    """Return the earlier uses of these keys; expired ones count until they are deleted."""
    found = rows(EARLIER, _columns(keys)) if keys else []
    return {keys[number - 1]: KeyUse(bytes(fingerprint), *answer) for number, fingerprint, *answer in found}


def _columns(keys: Sequence[Key]) -> dict[str, list[Any]]:
    return {"publishers": [key.publisher_id for key in keys], "keys": [key.text for key in keys]}


def remember(uses: Mapping[Key, KeyUse], *, hours: int) -> None:
    """Store the answers by key, as the last statement of the publish's own transaction."""
    if uses:
        kept = [
            use._asdict() | {"publisher_id": key.publisher_id, "key": key.text, "fingerprint": use.fingerprint.hex()}
            for key, use in uses.items()
        ]
        rows(REMEMBER, {"uses": orjson.dumps(kept).decode(), "hours": hours}, is_last=True)


def forget_expired_keys() -> int:
    """Delete a slice of the keys that have expired; return its size."""
    return len(rows(FORGET, [BELIEVED_CLOCK.now()]))
