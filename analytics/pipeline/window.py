"""One window: read, checked, summarized, checked, made to count, loaded; a run that ends on the way changes nothing.

Until the manifest names what was made, the summaries of before are in force; whatever was interrupted is done again.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import psycopg

from analytics.pipeline import checks, making
from analytics.pipeline.checks import Looks
from analytics.pipeline.extraction import count, leaf_rows
from analytics.pipeline.extraction.connection import CONNECT_SECONDS, reading
from analytics.pipeline.job import Job, Window
from analytics.pipeline.lake.lake import CHANGED, Lake
from analytics.pipeline.lake.manifests import Manifest, Piece
from analytics.pipeline.lake.stages import Stage, hours_of
from analytics.pipeline.load import load
from analytics.pipeline.looks import look
from analytics.pipeline.reports import Done
from analytics.pipeline.tables import BRONZE, DAILY, GOLD, SILVER


@dataclass(frozen=True, slots=True)
class Run:
    """What all windows of a run have in common."""

    job: Job
    lake: Lake
    database: str
    still: Callable[[], None]
    """Raises where this may not be the only run any more."""
    say: Callable[[str], None]


def summarize(run: Run, window: Window, done: Done) -> None:
    """Summarize a window; `done` gets what is known of it, step by step.

    Raises:
        failures.OF_A_WINDOW: it is not summarized, and what was there before counts; where only loading failed, the
            lake has the new already.
        LockLost: likewise; another run may be under way.

    """
    before = run.lake.known(window.day, run.say) if window.is_day else run.lake.manifest(window.day)
    run.lake.touch(window.day)
    stage = Stage(run.lake, before, hours_of(window), run.job.run)
    facts = _read(run, window, stage, done, before)
    after = _summarize(run, window, stage, done, before, facts)
    run.lake.mark(CHANGED, window.day)
    let_count(run, stage, after, window)


def let_count(run: Run, stage: Stage, manifest: Manifest, window: Window) -> None:
    """Let what has been made, and checked, of a window count: in the lake, then in PostgreSQL.

    Raises:
        OSError: it counts nowhere.
        psycopg.Error: it counts in the lake only.
        LockLost: it counts in the lake at the most; another run may be under way.

    """
    stage.settle()
    run.still()
    run.lake.keep(manifest)
    run.say(f"{window}: in the lake")
    with psycopg.connect(run.database, connect_timeout=CONNECT_SECONDS, autocommit=True) as connection:
        load(connection, window, {table: stage.batches(table) for table in GOLD if table in stage.parts}, run.still)


def _read(run: Run, window: Window, stage: Stage, done: Done, before: Manifest) -> Looks:
    """Copy the facts of a window into the lake, and check them; what is filed under a day later shows by `inputs`."""
    if window.is_day:
        with reading(run.database) as connection:
            done.inputs = leaf_rows(connection, window.day)
    facts = making.facts(run.lake, stage, window, slice_rows=run.job.slice_rows)
    done.rows_read = {table.name: stage.parts[table].rows for table in BRONZE}
    run.say(f"{window}: {sum(done.rows_read.values()):,} rows read")
    with reading(run.database) as connection:
        counted = {table: count(connection, table, window) for table in checks.COUNTED}
    looks = look(facts, window, run.job.vocabulary)
    done.checks = checks.of_facts(looks, counted) + checks.of_the_past(looks, before.rows_in(window))
    checks.insist(done.checks)
    return looks


def _summarize(run: Run, window: Window, stage: Stage, done: Done, before: Manifest, facts: Looks) -> Manifest:
    """Make silver and gold of the facts, check them, and return the manifest that lets all of it count."""
    words = run.job.vocabulary
    silver = making.clean(stage, stage.frames(BRONZE), words)
    audited = making.audited_before(run.lake, window, run.say)
    making.summaries(stage, replace(silver, audit=audited), window, words)
    piece = Piece(window, run.job.run, done.inputs, (), tuple(stage.parts.values()))
    making.summaries_of_day(run.lake, stage, before.with_piece(piece), run.job.objective, run.say)
    done.rows_written = {table.path: stage.parts[table].rows for table in SILVER + GOLD}
    done.lake_bytes = stage.size()
    run.say(f"{window}: {sum(done.rows_written.values()):,} rows made")
    found = checks.of_summaries(look(stage.frames(SILVER + GOLD), window, words), facts)
    done.checks += found
    checks.insist(found)
    daily = tuple(stage.parts[table] for table in DAILY)
    return before.with_piece(replace(piece, checks=done.checks)).with_daily(daily)
