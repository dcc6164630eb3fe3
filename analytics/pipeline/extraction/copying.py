"""Copying one slice on an executor: the answer of COPY becomes Arrow, a block at a time."""

from collections.abc import Iterable, Iterator
from typing import Final

import pyarrow as pa
from pyarrow import csv

from analytics.pipeline.extraction.connection import reading
from analytics.pipeline.tables import Table

BLOCK_BYTES: Final = 2**20

TYPES: Final = {
    "long": pa.int64(),
    "int": pa.int32(),
    "string": pa.string(),
    "boolean": pa.bool_(),
    "timestamp": pa.timestamp("us", "UTC"),
}


def copied(address: str, table: Table, query: str) -> Iterator[pa.RecordBatch]:
    """Yield what a query gives, with a table's columns; its transaction has ended before the first of it is yielded.

    So vacuum and retention wait for PostgreSQL and the network, never for whoever uses the rows; a slice fits into
    memory.

    Raises:
        Unreadable: PostgreSQL is away, or what was to be read is not there any more.

    """
    with (
        reading(address) as connection,
        connection.cursor() as cursor,
        cursor.copy(f"COPY ({query}) TO STDOUT (FORMAT csv)".encode()) as rows,
    ):
        whole = list(blocks(rows))
    for block in whole:
        yield from arrow(block, table)


def blocks(rows: Iterable[bytes | bytearray | memoryview]) -> Iterator[bytes]:
    """Join rows into blocks; the server sends one at a time, however many lines a row has."""
    block, size = list[bytes | bytearray | memoryview](), 0
    for row in rows:
        block.append(row)
        size += len(row)
        if size >= BLOCK_BYTES:
            yield b"".join(block)
            block, size = [], 0
    if block:
        yield b"".join(block)


def arrow(block: bytes, table: Table) -> list[pa.RecordBatch]:
    """Return whole rows of CSV, as PostgreSQL writes it, with a table's columns: what is not quoted may be null."""
    types = {name: TYPES[kind] for name, kind in (column.split() for column in table.columns.split(", "))}
    read = csv.read_csv(
        pa.py_buffer(block),
        read_options=csv.ReadOptions(column_names=list(types), use_threads=False, block_size=len(block)),
        parse_options=csv.ParseOptions(newlines_in_values=True),
        convert_options=csv.ConvertOptions(
            column_types=types,
            null_values=[""],
            true_values=["t"],
            false_values=["f"],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
        ),
    )
    return list(read.to_batches())
