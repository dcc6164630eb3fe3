"""Rotate signing secrets, and the secret key that encrypts them and other values."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from django.apps import apps
from django.db import connection, transaction
from django.db.models import QuerySet
from psycopg import sql

from broker_project.core.db import rows
from broker_project.core.encryption import KEY_ID_BYTES, DecryptionFailed, EncryptedColumn, place_of
from subscriptions.credentials.tokens import secret_of
from subscriptions.edit import Versions, change, locked
from subscriptions.models import FormerSecret, Subscription

OVERLAP: Final = timedelta(days=1)
"""How long a former signing secret signs by default."""
MAX_OVERLAP: Final = timedelta(days=7)
MAX_FORMER: Final = 3
"""Each adds a signature to every request."""

OVERLAP_END: Final = "SELECT date_trunc('second', clock_timestamp() + %s::interval + interval '1 second')"
"""A whole second, like the time in each request that its signatures are of."""
FORGET: Final = "DELETE FROM subscriptions_formersecret WHERE signs_until <= clock_timestamp()"

SLICE: Final = 200
"""Rows encrypted again in one transaction: none of them is locked for long."""
CHUNK: Final = 20_000
"""Rows read by one statement: none exceeds the database's time limit, however large the table is."""

NEXT: Final = """
SELECT max({key}) FROM (SELECT {key} FROM {table} WHERE {key} > %(after)s ORDER BY {key} LIMIT {chunk}) AS chunk
"""
WITHIN: Final = "{key} > %(after)s AND {key} <= %(upto)s"
IS_FORMER: Final = "substring({column} FROM 1 FOR {length}) <> %(current)s{unless_over}"
COUNT: Final = "SELECT count(*) FROM {table} WHERE {is_former} AND {within}"
TAKE: Final = """
SELECT {key}, {bound_to}, {column} FROM {table} WHERE {is_former} AND {within} ORDER BY {key} LIMIT {slice}
   FOR NO KEY UPDATE
"""
QUIETLY: Final = "SET LOCAL broker.resealing = 'yes'"
ALOUD: Final = "SET LOCAL broker.resealing = ''"
"""The values stay the same: no version is raised, and no line has to read the row again."""
KEEP: Final = "UPDATE {table} SET {column} = %s WHERE {key} = %s"


class TooManySecrets(Exception):
    """The maximum number of former secrets sign already."""


@dataclass(frozen=True, slots=True)
class Reencrypted:
    """The result of a slice."""

    count: int
    unreadable: tuple[int, ...]
    """The ids of rows whose value no secret key decrypts."""


def rotate_secret(
    queryset: QuerySet[Subscription],
    *,
    random_bytes: bytes,
    overlap: timedelta = OVERLAP,
    expected: Versions | None = None,
) -> Subscription:
    """Give the one subscription in `which` a new signing secret; the present one signs too until `overlap` has passed.

    Secrets replaced earlier go on signing as well, so a client that has lost the answer can safely rotate again.
    Without an overlap no former secret signs any more.

    Raises:
        TooManySecrets: end the overlap first.
        VersionMismatch: see `edit.change`.

    """
    with transaction.atomic():
        record = locked(queryset, expected)
        ends_at = _retire(record, overlap) if overlap else None
        if ends_at is None:
            FormerSecret.objects.filter(subscription=record).delete()
        return change(queryset, changes={"signing_secret": secret_of(random_bytes), "overlap_ends_at": ends_at})


def end_overlap(queryset: QuerySet[Subscription], *, expected: Versions | None = None) -> Subscription:
    """Let only its present secret sign from now on."""
    with transaction.atomic():
        FormerSecret.objects.filter(subscription=locked(queryset, expected)).delete()
        return change(queryset, changes={"overlap_ends_at": None})


def forget_former_secrets() -> None:
    """Delete the former secrets that no longer sign."""
    rows(FORGET)


def _retire(record: Subscription, overlap: timedelta) -> datetime | None:
    """Let the present secret sign until `overlap` has passed; return until when any former secret signs.

    A secret that cannot be decrypted has never signed.
    """
    until: datetime
    ((until,),) = rows(OVERLAP_END, [overlap])
    if FormerSecret.objects.signing_for(record).count() >= MAX_FORMER:
        raise TooManySecrets(f"{MAX_FORMER} former secrets sign already: end the overlap first, or rotate without one.")
    try:
        FormerSecret.objects.create(subscription=record, secret=record.signing_secret, signs_until=until)
    except DecryptionFailed:
        return record.overlap_ends_at
    return max(until, record.overlap_ends_at or until)


def encrypted_columns() -> list[EncryptedColumn]:
    """Return the encrypted columns of all apps, each once: proxies have no table."""
    tables = [model._meta for model in apps.get_models() if not model._meta.proxy]  # noqa: SLF001 - documented by Django
    return [field for table in tables for field in table.concrete_fields if isinstance(field, EncryptedColumn)]


def count_former(column: EncryptedColumn) -> int:
    """Return how many values of a column are not encrypted under the current secret key."""
    return sum(_number(COUNT, column, after=after, upto=upto) or 0 for after, upto in _chunks(column))


def reencrypt(column: EncryptedColumn) -> Iterator[Reencrypted]:
    """Encrypt a column's values under the current secret key, a slice at a time; can be interrupted and repeated.

    Rows are locked meanwhile, so that no concurrent change is lost.
    """
    for start, upto in _chunks(column):
        after = start
        while taken := _reencrypt_next(column, after, upto):
            after, slice_ = taken
            yield slice_


def _chunks(column: EncryptedColumn) -> Iterator[tuple[int, int]]:
    """Yield ranges of ids, without the first and with the second, that cover the table."""
    after = 0
    while upto := _number(NEXT, column, after=after):
        yield after, upto
        after = upto


def _number(text: str, column: EncryptedColumn, **given: int) -> int | None:
    with connection.cursor() as cursor:
        cursor.execute(_statement(text, column), {"current": column.keys.current_id, **given})
        (number,) = cursor.fetchone() or (None,)
    return number


def _reencrypt_next(column: EncryptedColumn, after: int, upto: int) -> tuple[int, Reencrypted] | None:
    """Encrypt the next slice; return its last id and its result, None if there is no value left."""
    encrypted: list[tuple[bytes, int]] = []
    unreadable: list[int] = []
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(_statement(TAKE, column), {"current": column.keys.current_id, "after": after, "upto": upto})
        taken = cursor.fetchall()
        for row_id, bound_to, value in taken:
            place = place_of(bytes(bound_to) if isinstance(bound_to, memoryview) else bound_to)
            try:
                encrypted.append((column.keys.encrypt(column.keys.decrypt(bytes(value), place), place), row_id))
            except DecryptionFailed:
                unreadable.append(row_id)
        cursor.execute(QUIETLY)
        cursor.executemany(_statement(KEEP, column), encrypted)
        cursor.execute(ALOUD)
    return (taken[-1][0], Reencrypted(len(encrypted), tuple(unreadable))) if taken else None


def _statement(text: str, column: EncryptedColumn) -> Any:
    """Return a statement about a column; only our own names are put into it."""
    described = column.model._meta  # noqa: SLF001 - documented by Django
    over = sql.SQL(" AND {} > clock_timestamp()").format(sql.Identifier(column.needed_until))
    names = {
        "table": sql.Identifier(described.db_table),
        "key": sql.Identifier(described.pk.attname),
        "column": sql.Identifier(column.attname),
        "bound_to": sql.Identifier(column.bound_to),
        "length": sql.Literal(KEY_ID_BYTES),
        "slice": sql.Literal(SLICE),
        "chunk": sql.Literal(CHUNK),
        "within": sql.SQL(WITHIN).format(key=sql.Identifier(described.pk.attname)),
        "unless_over": over if column.needed_until else sql.SQL(""),
    }
    return sql.SQL(text).format(**names, is_former=sql.SQL(IS_FORMER).format(**names))
