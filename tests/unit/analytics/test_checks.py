"""The checks of a window, and how a failure is reported."""

import dataclasses

import pytest

from analytics.pipeline import checks, tables
from analytics.pipeline.checks import TableStatistics
from analytics.pipeline.extraction.statements import IN_WINDOW
from analytics.pipeline.job import Check
from analytics.pipeline.tables import Table
from analytics.pipeline.window import reason

FACTS = {table: TableStatistics(rows=5, total=5) for table in tables.BRONZE}
COUNTED = dict.fromkeys(IN_WINDOW, 5)
MADE = {
    **{table: TableStatistics(rows=2, total=2) for table in tables.GOLD},
    **{table: TableStatistics(rows=5, total=5) for table in tables.SILVER},
    tables.SILVER_DELIVERIES: TableStatistics(rows=10, total=10),
    **{table: TableStatistics(rows=2, total=5) for table in checks.TOTALS},
}

A_FULL_DISK = """[TASK_WRITE_FAILED] Task failed

JVM stacktrace:
org.apache.spark.SparkException: Task failed
\tat org.apache.spark.x
Caused by: java.io.UncheckedIOException: wrapped
Caused by: java.io.IOException: No space left on device
\tat java.base/sun.nio"""
A_DAY_GONE = """[PYTHON_DATA_SOURCE_ERROR] Failed
Traceback (most recent call last):
analytics.pipeline.connections.Unreadable: 2026-03-02 cannot be summarized

\tat org.apache.spark.x"""


def failed(found: tuple[Check, ...]) -> list[tuple[str, str]]:
    return [(check.name, check.found) for check in found if not check.passed]


def test_correct_tables_pass_all_checks() -> None:
    assert failed(checks.check_facts(FACTS, COUNTED, {})) == []
    assert failed(checks.check_summaries(MADE, FACTS)) == []


@pytest.mark.parametrize(
    ("table", "wrong", "name", "found"),
    [
        (tables.ATTEMPTS, {"rows": 4}, "bronze/attempts: all rows of PostgreSQL", "4 of 5"),
        (tables.ATTEMPTS, {"negative": 1}, "bronze/attempts: durations not negative", "1 rows are wrong"),
        (tables.MESSAGES, {"outside": 2}, "bronze/messages: in the window", "2 rows are wrong"),
        (tables.DELIVERIES, {"unknown": 1}, "bronze/deliveries: only words of the broker", "1 rows are wrong"),
        (tables.LINES, {"repeated": 1}, "bronze/lines: unique keys", "1 rows are wrong"),
    ],
)
def test_failed_checks_of_facts_are_named(table: Table, wrong: dict[str, int], name: str, found: str) -> None:
    found_now = FACTS | {table: dataclasses.replace(FACTS[table], **wrong)}
    assert failed(checks.check_facts(found_now, COUNTED, {})) == [(name, found)]


@pytest.mark.parametrize(("had", "found"), [(4, "5 of 4 and more"), (5, "5 of 5"), (6, "5 of 6")])
def test_a_window_that_is_not_closed_has_all_rows_that_there_were(had: int, found: str) -> None:
    found_now = checks.check_facts(FACTS, {}, {}, at_least={tables.ATTEMPTS: had})
    (one,) = [check for check in found_now if check.name.endswith("had")]
    assert (one.name, one.passed, one.found) == ("bronze/attempts: all rows that PostgreSQL had", had < 6, found)


@pytest.mark.parametrize(
    ("table", "wrong", "name", "found"),
    [
        (tables.SILVER_DELIVERIES, {"rows": 9}, "silver/deliveries: every row once", "9 of 10"),
        (tables.SILVER_ATTEMPTS, {"rows": 6}, "silver/attempts: every row once", "6 of 5"),
        (tables.RELIABILITY, {"total": 4}, "gold/reliability: deliveries add up", "4 of 5"),
        (tables.ENDPOINTS, {"total": 6}, "gold/endpoints: attempts add up", "6 of 5"),
        (tables.LATENCY, {"repeated": 1}, "gold/latency: unique keys", "1 rows are wrong"),
        (tables.BACKLOG, {"outside": 1}, "gold/backlog: in the window", "1 rows are wrong"),
        (tables.BUDGETS, {"repeated": 1}, "gold/budgets: unique keys", "1 rows are wrong"),
    ],
)
def test_failed_checks_of_summaries_are_named(table: Table, wrong: dict[str, int], name: str, found: str) -> None:
    found_now = MADE | {table: dataclasses.replace(MADE[table], **wrong)}
    assert failed(checks.check_summaries(found_now, FACTS)) == [(name, found)]


def test_facts_deleted_since_the_last_summary_are_named() -> None:
    before = {"bronze/attempts": 7, "bronze/deliveries": 5, "bronze/messages": 4, "bronze/unfinished": 9}
    assert failed(checks.check_facts(FACTS, COUNTED, before)) == [
        ("bronze/attempts: none is gone", "2 of 7 are; see docs/explanation/summaries-pipeline.md")
    ]


def test_the_error_names_all_failed_checks() -> None:
    found = [Check("one", False, "1 of 2"), Check("two", True, ""), Check("three", False, "none")]
    with pytest.raises(checks.FailedChecks, match=r"^failed checks: one \(1 of 2\); three \(none\)$"):
        checks.require(found)


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("[Errno 28] No space left on device", "[Errno 28] No space left on device"),
        (A_FULL_DISK, "No space left on device"),
        (A_DAY_GONE, "2026-03-02 cannot be summarized"),
        ("", "OSError"),
    ],
)
def test_a_failure_is_reported_by_its_cause(text: str, cause: str) -> None:
    assert reason(OSError(text)) == cause
