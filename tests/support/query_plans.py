"""What PostgreSQL does for each statement of a use case: the plan it keeps for a prepared one, really carried out."""

import contextlib
import itertools
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, LiteralString

import psycopg
import pytest
from django.db import connection
from psycopg import sql

from broker_project.core import db
from tests.support.database import another_connection, execute

LARGE_TABLES = re.compile(r"^delivery_(open|pageread|hold|queuegroup|delivery|message|attempt)")
"""The tables that grow."""
CONDITIONS = re.compile(r"\(*closed_on [=<] '9999-12-31'::date\)*")
"""What says of an index only which partition is read."""
NAMED = re.compile(r"\b(id|line_id|delivery_id) = ")
"""What says of an index which rows are read."""
PASSED_ON = {"LockRows", "Result", "Subquery Scan", "Nested Loop", "Append"}
"""Nodes that pass a limit on to what they read first."""
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
        return [name for name in _searched(self.plan["Plan"], is_cut=False) if LARGE_TABLES.match(name)]

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

    def prepare(self, raw: psycopg.Connection[Any], number: int) -> ExplainedStatement:
        """Let another connection prepare it under a number, and plan it once and for all; return the plan."""
        types = f" ({', '.join(self.types)})" if self.types else ""
        raw.execute(f"PREPARE kept_{number}{types} AS {self.statement}".encode(), prepare=False)
        return self.kept_plan(raw, number)

    def kept_plan(self, raw: psycopg.Connection[Any], number: int) -> ExplainedStatement:
        """Return the plan that the connection has of it; what it is asked for plays no part."""
        arguments = f" ({', '.join(['NULL'] * len(self.types))})" if self.types else ""
        ((answer,),) = raw.execute(f"EXPLAIN (FORMAT JSON) EXECUTE kept_{number}{arguments}".encode()).fetchall()
        return ExplainedStatement(self.statement, answer[0])


QUEUES = "delivery_open, delivery_queuegroup, delivery_pageread, delivery_hold"
LARGE_QUEUES = {*QUEUES.split(", ")} - {"delivery_hold"}
"""Of holds there are few, and some statements read them all."""
FILL: LiteralString = """
INSERT INTO delivery_open (message_id, line_id, subscription_id, status, size, waits_for, due_at, fetches,
                           fetched_until)
SELECT n, n % 100, n % 100, CASE kind WHEN 'RETURN' THEN 'IN_FLIGHT' ELSE 'PENDING' END, 2, kind,
       CASE kind WHEN 'RETRY' THEN now() END, 1, CASE kind WHEN 'RETURN' THEN now() END
  FROM generate_series(1, {0}) n, (SELECT (ARRAY['TURN', 'RETRY', 'RETURN', 'START'])[{1}] AS kind) k;
INSERT INTO delivery_queuegroup (message_id, line_id, delivery_ids, size) SELECT n, n % 5, ARRAY[n], 2
  FROM generate_series(1, {0}) n;
INSERT INTO delivery_pageread (line_id, epoch, delivery_ids) SELECT n, 1, ARRAY[n] FROM generate_series(1, {0} / 10) n;
INSERT INTO delivery_hold (delivery_id, line_id)
SELECT n + m.number, n FROM generate_series(1, {0} / 10) n, (SELECT count(*) AS number FROM delivery_hold) m"""
DELETE: LiteralString = "DELETE FROM " + "; DELETE FROM ".join(QUEUES.split(", "))
STATES: dict[str, list[LiteralString]] = {
    "never filled": [f"TRUNCATE {QUEUES}"],
    "never filled, and analysed": [f"ANALYZE {QUEUES}"],
    "with ten, and analysed": [FILL.format(10, 1), f"ANALYZE {QUEUES}"],
    "filled since": [FILL.format(20_000, 1)],
    "full": [f"VACUUM ANALYZE {QUEUES}"],
    "emptied": [DELETE, f"VACUUM {QUEUES}"],
    "emptied, and analysed": [f"ANALYZE {QUEUES}"],
    "full of retries, and analysed": [FILL.format(20_000, 2), f"ANALYZE {QUEUES}"],
    "full of what is fetched, analysed, and emptied": [
        DELETE, FILL.format(20_000, 3), f"ANALYZE {QUEUES}", DELETE, f"VACUUM {QUEUES}",
    ],
    "full of what is delayed, and seen empty": [FILL.format(20_000, 4)],
    "cut, and analysed, with what is known of the columns": [f"TRUNCATE {QUEUES}", f"ANALYZE {QUEUES}"],
}  # fmt: skip
"""What waits when statements are planned: one moment after the other."""


def searching_plans(statements: "list[PreparedStatement]", *, fewest: int) -> list[tuple[str, list[str], str]]:
    """Return the plans that search a queue from one end on, or sort it: made in each state that a queue can be in."""
    assert len(statements) >= fewest
    found = []
    for name, steps in STATES.items():
        with another_connection() as raw:
            for step in (part for one in steps for part in one.split(";")):
                raw.execute(step.encode(), prepare=False)
            for number, one in enumerate(statements):
                plan = one.prepare(raw, number)
                searched = sorted({*plan.searched} & LARGE_QUEUES)
                found += [(name, searched, one.statement)] if searched else []
    return found


def prepared_statements() -> list[PreparedStatement]:
    """Return what this thread's connection keeps prepared."""
    return [
        PreparedStatement(statement, types)
        for statement, types in execute(
            "SELECT statement, parameter_types::text[] FROM pg_prepared_statements WHERE NOT from_sql"
        )
    ]


def _nodes(node: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield node
    for child in node.get("Plans", []):
        yield from _nodes(child)


def _searched(node: dict[str, Any], *, is_cut: bool, is_sorted: bool = False) -> Iterator[str]:
    """Yield the tables that are read from one end on, or sorted; along an index that a limit ends is neither."""
    kind, condition = node["Node Type"], CONDITIONS.sub("", node.get("Index Cond", ""))
    by_index = kind in {"Index Scan", "Index Only Scan"}
    if kind == "Seq Scan" or (
        by_index and not is_cut and (not condition or (is_sorted and not NAMED.search(condition)))
    ):
        yield node["Relation Name"]
    is_cut = kind == "Limit" or (is_cut and kind in PASSED_ON)
    is_sorted = "Sort" in kind or (is_sorted and kind not in {"Limit", "Aggregate", "WindowAgg"})
    for child in node.get("Plans", []):
        passes = child.get("Parent Relationship") in {"Outer", "Inner", "Subquery", "Member"}
        yield from _searched(child, is_cut=is_cut and passes, is_sorted=is_sorted and passes)


def _rows_read(node: dict[str, Any]) -> int:
    removed: float = node.get("Rows Removed by Filter", 0) + node.get("Rows Removed by Index Recheck", 0)
    return int((node.get("Actual Rows", 0) + removed) * node.get("Actual Loops", 0))


@contextlib.contextmanager
def explained_statements(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[ExplainedStatement]]:
    """Explain every statement before it is carried out, those of Django's cursor too, and undo the explaining."""
    found: list[ExplainedStatement] = []
    unexplained, unprepared = db.Connection.run, db.as_prepared
    originals: dict[bytes, str] = {}

    def as_prepared(statement: LiteralString, arguments: db.Arguments) -> tuple[bytes, Sequence[Any]]:
        text, values = unprepared(statement, arguments)
        originals[text] = statement
        return text, values

    def run(
        raw: db.Connection,
        statements: Sequence[tuple[bytes, Sequence[Any]]],
        _meanwhile: object = None,
        *,
        commits: bool = False,
    ) -> list[db.Rows]:
        rows = []
        for text, values in statements:
            found.append(ExplainedStatement(originals[text], _explained(raw, text.decode(), values)))
            rows += unexplained(raw, [(text, values)])
        if commits:
            raw.commit()
        return rows

    def by_django(execute: Any, statement: str, params: Any, many: bool, context: Any) -> Any:
        if statement.lstrip("(").startswith("SELECT"):
            # Django neither prepares nor leaves anything open: its statements are planned as they are.
            plain = psycopg.ClientCursor(connection.connection).mogrify(statement, params)
            found.append(ExplainedStatement(plain, _explained(connection.connection, plain, ())))
        return execute(statement, params, many, context)

    with monkeypatch.context() as patched, connection.execute_wrapper(by_django):
        patched.setattr(db, "as_prepared", as_prepared)
        patched.setattr(db.Connection, "run", run)
        yield found


def _explained(raw: psycopg.Connection[Any], statement: str, params: Any) -> dict[str, Any]:
    name = sql.Identifier(f"explained_{next(_numbers)}")
    execute = sql.SQL("EXECUTE {}").format(name)
    if params:
        execute += sql.SQL(" ({})").format(sql.SQL(", ").join(map(sql.Literal, params)))
    with psycopg.ClientCursor(raw) as cursor, raw.transaction(force_rollback=True):
        cursor.execute("SET LOCAL plan_cache_mode = force_generic_plan")
        cursor.execute(sql.SQL("PREPARE {} AS ").format(name).as_bytes(raw) + statement.encode())
        cursor.execute(sql.SQL("EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) ") + execute)
        ((answer,),) = cursor.fetchall()
    plan: dict[str, Any] = (json.loads(answer) if isinstance(answer, str) else answer)[0]
    return plan


def costly_statements(
    statements: list[ExplainedStatement], max_rows: int = MAX_ROWS, max_wasted: int = MAX_WASTED_ROWS
) -> list[str]:
    """Return what reads too much, and how."""
    return [
        f"{one.scans(max_wasted)} {one.rows_read} rows, {one.blocks_read} blocks: {one.statement[:2000]}"
        for one in statements
        if one.scans(max_wasted) or one.rows_read > max_rows or one.blocks_read > max(MAX_BLOCKS, 2 * max_rows)
    ]
