"""What PostgreSQL does for each statement of a use case: the plan it keeps for a prepared one, really carried out."""

import contextlib
import itertools
import json
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import psycopg
import pytest
from django.db import connection
from psycopg import sql

PLACEHOLDER = re.compile(r"%(?:\((\w+)\))?([sbt%])")
LARGE_TABLES = re.compile(r"^delivery_(open|pageread|queuegroup|delivery|message|attempt)")
"""The tables that grow."""
MAX_ROWS = 1_500
"""A statement of a story has to do with a few dozen deliveries."""
MAX_WASTED_ROWS = 300
MAX_BLOCKS = 15_000


_numbers = itertools.count(1)


@dataclass(frozen=True, slots=True)
class ExplainedStatement:
    """One statement, and its plan."""

    statement: str
    plan: dict[str, Any]

    def nodes(self) -> Iterator[dict[str, Any]]:
        yield from _nodes(self.plan["Plan"])

    @property
    def rows_read(self) -> int:
        """Rows of growing tables that were looked at, wanted or not."""
        return sum(_rows_read(node) for node in self.nodes() if LARGE_TABLES.match(node.get("Relation Name", "")))

    @property
    def blocks_read(self) -> int:
        plan = self.plan["Plan"]
        return int(plan.get("Shared Hit Blocks", 0) + plan.get("Shared Read Blocks", 0))

    @property
    def searched(self) -> list[str]:
        """The growing tables that are searched from one end on, were there much in them or not."""
        scans = (node["Relation Name"] for node in self.nodes() if node["Node Type"] == "Seq Scan")
        return [name for name in scans if LARGE_TABLES.match(name)]

    def scans(self, few: int) -> list[str]:
        """Return the growing tables that were searched from one end on, past more than a few unwanted rows."""
        searched = {
            node["Relation Name"]: node.get("Rows Removed by Filter", 0) * node["Actual Loops"]
            for node in self.nodes()
            if node["Node Type"] == "Seq Scan" and LARGE_TABLES.match(node["Relation Name"])
        }
        return [f"{name} ({rows} rows)" for name, rows in searched.items() if rows > few]


@dataclass(frozen=True, slots=True)
class PreparedStatement:
    """A statement as a connection keeps it."""

    statement: str
    types: list[str]

    def prepare(self, raw: psycopg.Connection[Any], number: int) -> None:
        """Let another connection prepare it under a number, and plan it once and for all."""
        types = f" ({', '.join(self.types)})" if self.types else ""
        raw.execute(f"PREPARE kept_{number}{types} AS {self.statement}".encode(), prepare=False)
        self.kept_plan(raw, number)

    def kept_plan(self, raw: psycopg.Connection[Any], number: int) -> ExplainedStatement:
        """Return the plan that the connection has of it; what it is asked for plays no part."""
        arguments = f" ({', '.join(['NULL'] * len(self.types))})" if self.types else ""
        ((answer,),) = raw.execute(f"EXPLAIN (FORMAT JSON) EXECUTE kept_{number}{arguments}".encode()).fetchall()
        return ExplainedStatement(self.statement, answer[0])


def prepared_statements() -> list[PreparedStatement]:
    """Return what this thread's connection keeps prepared."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT statement, parameter_types::text[] FROM pg_prepared_statements ORDER BY name")
        return [PreparedStatement(statement, types) for statement, types in cursor.fetchall()]


def _nodes(node: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield node
    for child in node.get("Plans", []):
        yield from _nodes(child)


def _rows_read(node: dict[str, Any]) -> int:
    removed: float = node.get("Rows Removed by Filter", 0) + node.get("Rows Removed by Index Recheck", 0)
    return int((node.get("Actual Rows", 0) + removed) * node.get("Actual Loops", 0))


@contextlib.contextmanager
def explained_statements(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[ExplainedStatement]]:
    """Explain every statement before it is carried out, those of Django's cursor too, and undo the explaining."""
    found: list[ExplainedStatement] = []

    class Cursor(psycopg.Cursor[Any]):
        def execute(self, query: Any, params: Any = None, **options: Any) -> Any:
            found.append(ExplainedStatement(query, _explained(self.connection, query, params)))
            return super().execute(query, params, **options)

    def by_django(execute: Any, statement: str, params: Any, many: bool, context: Any) -> Any:
        if statement.lstrip("(").startswith("SELECT"):
            # Django neither prepares nor leaves anything open: its statements are planned as they are.
            plain = psycopg.ClientCursor(connection.connection).mogrify(statement, params)
            found.append(ExplainedStatement(plain, _explained(connection.connection, plain.replace("%", "%%"), ())))
        return execute(statement, params, many, context)

    with monkeypatch.context() as patched, connection.execute_wrapper(by_django):
        patched.setattr(psycopg, "Cursor", Cursor)
        yield found


def _explained(raw: psycopg.Connection[Any], statement: str, params: Any) -> dict[str, Any]:
    numbered, values = _with_values(statement, params or ())
    name = sql.Identifier(f"explained_{next(_numbers)}")
    execute = sql.SQL("EXECUTE {}").format(name)
    if values:
        execute += sql.SQL(" ({})").format(sql.SQL(", ").join(map(sql.Literal, values)))
    with psycopg.ClientCursor(raw) as cursor, raw.transaction(force_rollback=True):
        cursor.execute("SET LOCAL plan_cache_mode = force_generic_plan")
        cursor.execute(sql.SQL("PREPARE {} AS ").format(name).as_bytes(raw) + numbered.encode())
        cursor.execute(sql.SQL("EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) ") + execute)
        ((answer,),) = cursor.fetchall()
    plan: dict[str, Any] = (json.loads(answer) if isinstance(answer, str) else answer)[0]
    return plan


def as_prepared(statement: str) -> str:
    """Return a statement as PostgreSQL keeps it: with `$1`, `$2`, … for its named parameters."""
    return _with_values(statement, defaultdict(lambda: None))[0]


def _with_values(statement: str, params: Any) -> tuple[str, list[Any]]:
    """Return the statement with `$1`, `$2`, … and the values of these parameters."""
    values: list[Any] = []
    numbers: dict[str, int] = {}

    def number(match: re.Match[str]) -> str:
        name, kind = match.groups()
        if kind == "%":
            return "%"
        if name not in numbers or name is None:
            values.append(params[name] if name else params[len(values)])
            numbers[name] = len(values)
        return f"${numbers[name]}"

    return PLACEHOLDER.sub(number, statement), values


def costly_statements(
    statements: list[ExplainedStatement], max_rows: int = MAX_ROWS, max_wasted: int = MAX_WASTED_ROWS
) -> list[str]:
    """Return what reads too much, and how."""
    return [
        f"{one.scans(max_wasted)} {one.rows_read} rows, {one.blocks_read} blocks: {one.statement[:2000]}"
        for one in statements
        if one.scans(max_wasted) or one.rows_read > max_rows or one.blocks_read > max(MAX_BLOCKS, 2 * max_rows)
    ]
