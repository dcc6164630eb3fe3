"""Sealing everything under the present secret key, so that former ones may be forgotten."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from django.apps import apps
from django.db import connection, transaction
from psycopg import sql

from broker_project.core.encryption import KEY_ID_BYTES, DecryptionFailed, EncryptedColumn, place_of

SLICE: Final = 200
"""Rows sealed anew in one transaction: none of them is locked for long."""

CHUNK: Final = 20_000
"""Rows looked at in one statement: none takes longer than the database lets it, however large the table is."""

NEXT: Final = """
SELECT max({key}) FROM (SELECT {key} FROM {table} WHERE {key} > %(after)s ORDER BY {key} LIMIT {chunk}) AS chunk
"""
WITHIN: Final = "{key} > %(after)s AND {key} <= %(upto)s"
IS_FORMER: Final = "substring({column} FROM 1 FOR {length}) <> %(present)s{unless_over}"
COUNT: Final = "SELECT count(*) FROM {table} WHERE {is_former} AND {within}"
TAKE: Final = """
SELECT {key}, {bound_to}, {column} FROM {table} WHERE {is_former} AND {within} ORDER BY {key} LIMIT {slice}
   FOR NO KEY UPDATE
"""
QUIETLY: Final = "SET LOCAL broker.resealing = 'yes'"
ALOUD: Final = "SET LOCAL broker.resealing = ''"
"""What a row says stays as it is: no version is raised, and no line has to read it again."""
KEEP: Final = "UPDATE {table} SET {column} = %s WHERE {key} = %s"


@dataclass(frozen=True, slots=True)
class Resealed:
    """What came of a slice."""

    sealed: int
    unreadable: tuple[int, ...]
    """The ids of rows whose value no secret opens."""


def sealed_columns() -> list[EncryptedColumn]:
    """Return all columns that are kept sealed, whatever app they are of, each once: proxies have no table."""
    tables = [model._meta for model in apps.get_models() if not model._meta.proxy]  # noqa: SLF001 - documented by Django
    return [field for table in tables for field in table.concrete_fields if isinstance(field, EncryptedColumn)]


def count_former(column: EncryptedColumn) -> int:
    """Return how many values of a column need a former secret, or one that is gone."""
    return sum(_one(COUNT, column, after=after, upto=upto) or 0 for after, upto in _chunks(column))


def reseal(column: EncryptedColumn) -> Iterator[Resealed]:
    """Seal a column's values under the present secret, a slice at a time; ended anywhere, it goes on where it was.

    Rows are locked while that is done: what somebody else changes meanwhile is not lost.
    """
    for start, upto in _chunks(column):
        after = start
        while taken := _reseal_next(column, after, upto):
            after, came = taken
            yield came


def _chunks(column: EncryptedColumn) -> Iterator[tuple[int, int]]:
    """Return the ids after which and up to which the rows of a column's table are looked at."""
    after = 0
    while upto := _one(NEXT, column, after=after):
        yield after, upto
        after = upto


def _one(text: str, column: EncryptedColumn, **given: int) -> int | None:
    with connection.cursor() as cursor:
        cursor.execute(_statement(text, column), {"present": column.keys.current_id, **given})
        (number,) = cursor.fetchone() or (None,)
    return number


def _reseal_next(column: EncryptedColumn, after: int, upto: int) -> tuple[int, Resealed] | None:
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(_statement(TAKE, column), {"present": column.keys.current_id, "after": after, "upto": upto})
        rows = cursor.fetchall()
        opened = {row_id: _sealed_anew(column, bound_to, bytes(value)) for row_id, bound_to, value in rows}
        cursor.execute(QUIETLY)
        anew = [(value, row_id) for row_id, value in opened.items() if value is not None]
        cursor.executemany(_statement(KEEP, column), anew)
        cursor.execute(ALOUD)
    unreadable = tuple(row_id for row_id, value in opened.items() if value is None)
    return (max(opened), Resealed(len(anew), unreadable)) if opened else None


def _sealed_anew(column: EncryptedColumn, bound_to: int | bytes, value: bytes) -> bytes | None:
    place = place_of(bytes(bound_to) if isinstance(bound_to, memoryview) else bound_to)
    try:
        return column.keys.encrypt(column.keys.decrypt(value, place), place)
    except DecryptionFailed:
        return None


def _statement(text: str, column: EncryptedColumn) -> Any:
    """Return a statement about a column; only names of ours are put into it."""
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
