"""`manage.py rotate_keys`: encrypt everything under the current secret key, or count what is not.

The values stay the same: no version is raised, and no line has to read its subscription again.
"""

import sys
from collections.abc import Iterator
from typing import Any, Final

from django.apps import apps
from django.core.management.base import BaseCommand, CommandParser
from django.db import connection, transaction
from psycopg import sql

from broker_project.core.encryption import KEY_ID_BYTES, DecryptionFailed, EncryptedColumn, place_of

CHUNK: Final = 1_000
"""Rows counted by one statement, and encrypted again in one transaction: no row is locked for long."""

IS_FORMER: Final = "substring({column} FROM 1 FOR {length}) <> %(current)s{unless_over}"
COUNT: Final = """
SELECT max({key}), count(*) FILTER (WHERE {is_former})
  FROM (SELECT * FROM {table} WHERE {key} > %(after)s ORDER BY {key} LIMIT {chunk}) AS chunk
"""
TAKE: Final = """
SELECT {key}, {bound_to}, {column} FROM {table} WHERE {is_former} AND {key} > %(after)s AND {key} <= %(upto)s
 ORDER BY {key} FOR NO KEY UPDATE
"""
KEEP: Final = "UPDATE {table} SET {column} = %s WHERE {key} = %s"
KEEP_VERSION: Final = "SET LOCAL broker.resealing = 'yes'"
RAISE_VERSION: Final = "SET LOCAL broker.resealing = ''"


class Command(BaseCommand):
    """The step after a change of `BROKER_SECRET_KEY`."""

    help = (
        "Encrypts everything under the current BROKER_SECRET_KEY, so that fallbacks can be dropped. Can be interrupted "
        "and started again, while the broker runs. Exits with 1 if something still needs a former key."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        """Add `--check`."""
        parser.add_argument("--check", action="store_true", help="only count what still needs a former key")

    def handle(self, *_: Any, check: bool, **__: Any) -> None:
        """Work column by column."""
        left = 0
        for column in encrypted_columns():
            total = count_former(column)
            if check:
                self.stdout.write(f"{column.purpose}: {total} under former keys")
            left += total if check else self._reencrypt(column, total)
        if left:
            missing = "not the present one" if check else "not among BROKER_SECRET_KEY_FALLBACKS"
            self.stdout.write(f"{left} need a secret key that is {missing}.")
            sys.exit(1)
        self.stdout.write("Nothing needs a former secret key: fallbacks may be dropped.")

    def _reencrypt(self, column: EncryptedColumn, total: int) -> int:
        """Encrypt a column's values again; return how many cannot be decrypted."""
        done, unreadable = 0, 0
        for encrypted, failed in reencrypt(column):
            done, unreadable = done + encrypted, unreadable + len(failed)
            for row_id in failed:
                named = f"{column.model._meta.verbose_name} {row_id}"  # noqa: SLF001 - documented by Django
                self.stderr.write(f"{column.purpose} of {named} cannot be decrypted: set it again.")
            self.stdout.write(f"{column.purpose}: {done} of {total}")
        if not total:
            self.stdout.write(f"{column.purpose}: nothing to do")
        return unreadable


def encrypted_columns() -> list[EncryptedColumn]:
    """Return the encrypted columns of all apps, each once: proxies have no table."""
    tables = [model._meta for model in apps.get_models() if not model._meta.proxy]  # noqa: SLF001 - documented by Django
    return [field for table in tables for field in table.concrete_fields if isinstance(field, EncryptedColumn)]


def count_former(column: EncryptedColumn) -> int:
    """Return how many values of a column are not encrypted under the current secret key."""
    return sum(former for _, _, former in _chunks(column))


def reencrypt(column: EncryptedColumn) -> Iterator[tuple[int, list[int]]]:
    """Encrypt a column's values under the current secret key; yield what each transaction has done.

    That is the number of values that were encrypted, and the ids of rows whose value no secret key decrypts. Rows are
    locked meanwhile, so that no concurrent change is lost. Can be interrupted and repeated.
    """
    current = column.keys.current_id
    for after, upto, former in _chunks(column):
        if not former:
            continue
        encrypted, failed = list[tuple[bytes, int]](), list[int]()
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute(_statement(TAKE, column), {"current": current, "after": after, "upto": upto})
            for row_id, bound_to, value in cursor.fetchall():
                place = place_of(bytes(bound_to) if isinstance(bound_to, memoryview) else bound_to)
                try:
                    encrypted.append((column.keys.encrypt(column.keys.decrypt(bytes(value), place), place), row_id))
                except DecryptionFailed:
                    failed.append(row_id)
            cursor.execute(KEEP_VERSION)
            cursor.executemany(_statement(KEEP, column), encrypted)
            cursor.execute(RAISE_VERSION)
        yield len(encrypted), failed


def _chunks(column: EncryptedColumn) -> Iterator[tuple[int, int, int]]:
    """Yield ranges of ids, without the first and with the second, that cover the table, and their former values."""
    after = 0
    while True:
        with connection.cursor() as cursor:
            cursor.execute(_statement(COUNT, column), {"current": column.keys.current_id, "after": after})
            upto, former = cursor.fetchone()
        if upto is None:
            return
        yield after, upto, former
        after = upto


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
        "chunk": sql.Literal(CHUNK),
        "unless_over": over if column.needed_until else sql.SQL(""),
    }
    return sql.SQL(text).format(**names, is_former=sql.SQL(IS_FORMER).format(**names))
