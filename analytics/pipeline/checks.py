"""What must be so before anything counts: the facts are those of PostgreSQL, and the summaries add up to them."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from analytics.pipeline import tables
from analytics.pipeline.looks import ADDED_UP, MOMENTS, WORDS, Look
from analytics.pipeline.reports import Check
from analytics.pipeline.tables import Table

COUNTED: Final = (tables.DELIVERIES, tables.ATTEMPTS, tables.MESSAGES, tables.CALLBACKS)
"""What PostgreSQL counts too: what does not change any more once the window is closed."""

LASTING: Final = (tables.DELIVERIES, tables.ATTEMPTS, tables.MESSAGES)
"""What nothing but retention takes out of a window that is closed."""

SAME_ROWS: Final = {
    tables.SILVER_DELIVERIES: (tables.DELIVERIES, tables.UNFINISHED),
    tables.SILVER_ATTEMPTS: (tables.ATTEMPTS,),
    tables.SILVER_MESSAGES: (tables.MESSAGES,),
}
"""What is made row by row, and of what: with unique keys there, so many rows are neither lost nor multiplied."""

FACTS_OF: Final = {
    tables.RELIABILITY: tables.DELIVERIES,
    tables.ENDPOINTS: tables.ATTEMPTS,
    tables.VOLUME: tables.MESSAGES,
    tables.CALLBACKS_SUMMARY: tables.CALLBACKS,
}
"""Whose rows a summary adds up to."""

Looks = Mapping[Table, Look]


class FailedChecks(Exception):
    """Something was found that must not be, and nothing of the window counts; the message names it."""


def of_facts(looks: Looks, counted: Mapping[Table, int]) -> tuple[Check, ...]:
    """Return what is checked of bronze, against what PostgreSQL counts."""
    return (
        *(_same(f"{table.path}: all rows of PostgreSQL", looks[table].rows, rows) for table, rows in counted.items()),
        *_unique(looks),
        *_inside(looks),
        *(_none(f"{table.path}: only words of the broker", looks[table].unknown) for table in WORDS),
        _none(f"{tables.ATTEMPTS.path}: durations not negative", looks[tables.ATTEMPTS].negative),
    )


def of_the_past(looks: Looks, before: Mapping[str, int]) -> tuple[Check, ...]:
    """Return what is checked of bronze against the summaries in force, of which these are the rows by path.

    Where facts are gone, those summaries are better than what could be made now.
    """
    known = ((table, looks[table].rows, before[table.path]) for table in LASTING if table.path in before)
    return tuple(
        Check(
            f"{table.path}: none is gone",
            rows >= were,
            f"{rows:,} of {were:,}"
            if rows >= were
            else f"{were - rows:,} of {were:,} are; see docs/explanation/summaries-pipeline.md",
        )
        for table, rows, were in known
    )


def of_daily(looks: Looks) -> tuple[Check, ...]:
    """Return what is checked of summaries of whole days."""
    return tuple(_unique(looks))


def of_summaries(looks: Looks, facts: Looks) -> tuple[Check, ...]:
    """Return what is checked of silver and gold, against what bronze looks like."""
    gold = {table: one for table, one in looks.items() if table not in SAME_ROWS}
    return (
        *(
            _same(f"{table.path}: every row once", looks[table].rows, sum(facts[one].rows for one in made_of))
            for table, made_of in SAME_ROWS.items()
        ),
        *_unique(gold),
        *_inside(gold),
        *(
            _same(f"{table.path}: {ADDED_UP[table]} add up", looks[table].total, facts[fact].total)
            for table, fact in FACTS_OF.items()
        ),
    )


def insist(checks: Iterable[Check]) -> None:
    """Go on only if all have passed.

    Raises:
        FailedChecks: some have not.

    """
    failed = [f"{check.name} ({check.found})" for check in checks if not check.passed]
    if failed:
        raise FailedChecks(f"failed checks: {'; '.join(failed)}")


def _unique(looks: Looks) -> Iterator[Check]:
    return (_none(f"{table.path}: unique keys", one.repeated) for table, one in looks.items() if table.key)


def _inside(looks: Looks) -> Iterator[Check]:
    return (_none(f"{table.path}: in the window", one.outside) for table, one in looks.items() if table in MOMENTS)


def _none(name: str, wrong: int) -> Check:
    return Check(name, wrong == 0, f"{wrong:,} rows are wrong" if wrong else "none is wrong")


def _same(name: str, found: int, wanted: int) -> Check:
    return Check(name, found == wanted, f"{found:,} of {wanted:,}")
