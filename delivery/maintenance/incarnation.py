"""Notice that the database is another than before, so that no id and no number names a second message (contract 4.10).

A restored dump and a standby that was promoted have forgotten what was stored last: the ids and numbers given since
would be given again. Each such state of the database is an *incarnation* of it. One row says which this is, and in
which database of which server it began. Where that is another one now, an incarnation begins before anything else is
done: ids, numbers and epochs go on from where the time of day puts them, which is beyond all that were given; what is
unfinished may have been sent already, so it is uncertain; and the processes that know an earlier one end.
"""

import os
from collections import deque
from typing import Any, Final

import psycopg
import structlog
from django.db import connection

from broker_project.core.database_server import IS_STANDBY
from broker_project.core.db import answered_within, on_connect, rows
from delivery.believed_clock import NOTE_JUMP
from delivery.maintenance.partitions import DAYS_AHEAD, IDS_PER_DAY, SEQUENCES, TODAY, open_with
from delivery.replay.job_steps import FAIL

STATE: Final = """
SELECT id::text, identity = database_identity() FROM delivery_incarnation
 WHERE EXISTS (SELECT FROM pg_trigger WHERE tgrelid = 'delivery_replay'::regclass AND tgname = 'under_way')
"""
"""A restore into a new database, and a promotion, change the identity; on a standby it is NULL.

Dumps have the triggers behind all data and indexes, and this one last: before it, a restore is not finished.
"""

LOCK: Final = "hashtext('delivery.incarnation')"
BEGIN_SECONDS: Final = 3600.0
"""How long all may take: it flags millions of deliveries in a minute."""
MARGIN: Final = 1_000_000
"""Beyond what is stored or the time says: more than were given in the seconds by which clocks of servers may differ."""
IDS_PER_SECOND: Final = IDS_PER_DAY // 86_400
"""A day's ids, spread over it: no broker gives more."""
NUMBERS_PER_SECOND: Final = 10_000
"""No line sends faster, and none is claimed more often."""

BEGIN: Final = f"""
SELECT set_config('statement_timeout', '0', true), set_config('enable_seqscan', 'on', true),
       pg_advisory_xact_lock({LOCK})
"""
END_OTHER_SESSIONS: Final = """
SELECT pg_terminate_backend(pid) FROM pg_stat_activity
 WHERE datname = current_database() AND usename = current_user AND pid <> pg_backend_pid()
"""
"""Then every process connects again, and hears of it before anything else."""
MOVE_IDS: Final = f"""
SELECT setval('{{sequence}}', {MARGIN} + GREATEST(s.last_value, (
         to_char(now, 'YYMMDD')::bigint * {IDS_PER_DAY}
         + extract(epoch FROM now - date_trunc('day', now)) * {IDS_PER_SECOND})::bigint))
  FROM {{sequence}} s, (SELECT clock_timestamp() AT TIME ZONE 'UTC' AS now) AS clock
"""
"""Forward only, and kept if the rest fails.

In the last eight seconds of a day these are ids of the next one: harmless, since its partitions are created, and the
next day goes on from there.
"""
MOVE_LINES: Final = f"""
WITH moved AS (
  UPDATE delivery_line l
     SET epoch = {MARGIN} + GREATEST(l.epoch, t.number),
         last_sequence = CASE l.lane WHEN 'main' THEN {MARGIN} + GREATEST(l.last_sequence, t.number)
                                     ELSE l.last_sequence END,
         lease_until = CASE WHEN l.lease_until IS NOT NULL THEN clock_timestamp() - interval '1 ms' END
    FROM (SELECT (extract(epoch FROM clock_timestamp()) * {NUMBERS_PER_SECOND})::bigint AS number) AS t
  RETURNING l.id, l.lane, l.last_sequence)
INSERT INTO delivery_lineevent (line_id, at, kind, sequence, reason)
SELECT id, clock_timestamp(), 'NUMBER_UNCERTAIN', last_sequence,
       'numbers up to here are left out: the database was restored, or a standby was promoted'
  FROM moved WHERE lane = 'main'
"""
"""A lease has run out, so its line is recovered: what was in flight goes first."""
DOUBT_DELIVERIES: Final = """
UPDATE delivery_open
   SET uncertain = true,
       sequence = CASE WHEN status = 'IN_FLIGHT' AND line_id IN (SELECT id FROM delivery_line WHERE lane = 'main')
                       THEN NULL ELSE sequence END
 WHERE closed_on = '9999-12-31' AND (NOT uncertain OR status = 'IN_FLIGHT' AND sequence IS NOT NULL)
"""
"""A main line's first request in flight may not have left after all, and another message has its number since then."""
DOUBT_GROUPS: Final = "UPDATE delivery_queuegroup SET uncertain = true WHERE NOT uncertain"
FORGET_FLOORS: Final = "DELETE FROM delivery_turnfloor"
"""Rows that were restored alone may be below them, and would be overlooked."""
FORGET_PAGES: Final = """
DELETE FROM delivery_pageread p USING delivery_line l WHERE l.id = p.line_id AND l.lease_until IS NULL
"""
"""A claim deletes the pages of the line's last epoch. Epochs have jumped, so it would never find these.

A line that has a lease is recovered: that needs its pages, and deletes them.
"""
NOTE: Final = """
UPDATE delivery_incarnation SET id = gen_random_uuid(), identity = database_identity(), begun_at = clock_timestamp()
RETURNING id::text
"""
LAST_IDS: Final = " UNION ALL ".join(f"SELECT '{name}', last_value FROM {name}" for name in SEQUENCES)
STATEMENTS: Final = (
    END_OTHER_SESSIONS,
    *(MOVE_IDS.format(sequence=sequence) for sequence in SEQUENCES),
    MOVE_LINES,
    DOUBT_DELIVERIES,
    DOUBT_GROUPS,
    FORGET_FLOORS,
    FORGET_PAGES,
    FAIL.format(which="true"),
    NOTE_JUMP,
)
ARGUMENTS: Final = {
    "reason": "the database was restored, or a standby was promoted; begin another one, which may repeat what was sent "
    "since",
    "seconds": 0.0,
    "elapsed": 0.0,
}
"""A backfill has drawn ids that may have been given since. A replay may have sent more than is known, under ids that
are forgotten, so that no flag would help receivers. The clock of another server may be ahead: see 0063.
"""

log = structlog.get_logger(__name__)


def begin(server: "psycopg.Connection[Any]", *, is_known_to_be_restored: bool = False) -> str:
    """Begin an incarnation, unless another process has done so meanwhile; return the id of the current one.

    Raises:
        psycopg.Error
    """
    with answered_within(BEGIN_SECONDS), server.transaction():
        server.execute(BEGIN)
        current, is_same = _state(server)
        if is_same and not is_known_to_be_restored:
            return current
        for statement in STATEMENTS:
            server.execute(statement.encode(), ARGUMENTS)
        with server.cursor() as cursor:  # a dump of more than a week ago has no partitions for these ids
            ((today,),) = cursor.execute(TODAY).fetchall()
            open_with(cursor, today, DAYS_AHEAD)
        ((current,),) = server.execute(NOTE.encode()).fetchall()
    log.warning("database.restored", incarnation=current, hint="unfinished deliveries are sent with a flag")
    return str(current)


def begin_after_restore() -> None:
    """Begin an incarnation of a database that is known to be restored.

    Raises:
        django.db.Error
    """
    connection.ensure_connection()
    with connection.wrap_database_errors:
        begin(connection.connection, is_known_to_be_restored=True)


def _state(server: "psycopg.Connection[Any]") -> tuple[str, bool]:
    """Return the id of the incarnation, and whether the database still is the one in which it began."""
    found = server.execute(STATE.encode()).fetchone()
    if found is None:
        raise psycopg.OperationalError("the database is being restored")
    current, is_same = found
    if is_same is None:
        raise psycopg.OperationalError(IS_STANDBY)  # a connection would outlive its promotion
    return current, is_same


class Guard:
    """Looks at each new connection: this process works for one incarnation, and ends when another has begun.

    What it remembers of rows, such as their bodies by id, may be wrong then. Its supervisor starts it again.
    """

    def __init__(self) -> None:
        self._known = ""

    def __call__(self, server: "psycopg.Connection[Any]") -> None:
        """Begin an incarnation if this is another database; end the process if it knows an earlier one."""
        server.execute(f"SELECT pg_advisory_xact_lock_shared({LOCK})".encode())  # while another begins, wait
        current, is_same = _state(server)
        if not is_same:
            current = begin(server)
        if self._known not in {"", current}:
            end_process()
        self._known = current


def end_process() -> None:
    """End this process, which knows rows of an earlier incarnation."""
    log.error("process.ended", reason="the database was restored, or a standby was promoted")
    os._exit(os.EX_TEMPFAIL)


def guard_connections() -> None:
    """Let this process, and those that it forks, work for one incarnation of the database."""
    on_connect.append(Guard())


class NewestIds:
    """The ids that a process has seen last: where the next are lower, files of the database were restored.

    What it saw the time before counts, a second earlier: a server that crashes may forget ids of its last moment, which
    nobody else has seen.
    """

    def __init__(self) -> None:
        self._seen: deque[dict[str, int]] = deque(maxlen=2)

    def went_back(self) -> bool:
        """Look again; return whether an id will be given that has been given before."""
        last: dict[str, int] = dict(rows(LAST_IDS))
        before = self._seen[0] if len(self._seen) == self._seen.maxlen else {}
        self._seen.append(last)
        return any(last[name] < newest for name, newest in before.items())
