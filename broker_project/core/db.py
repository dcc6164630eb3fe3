"""Django's PostgreSQL, with an end to waiting for a server that hangs, and with prepared statements where it is hot.

Django's own cursor plans a statement at every execution, which more than doubles its cost (345 instead of 128 µs of
PostgreSQL per delivery).
"""

import re
import select
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, cached_property
from itertools import count
from types import TracebackType
from typing import Any, ClassVar, Final, LiteralString

import psycopg
from django.db import DEFAULT_DB_ALIAS, InterfaceError, OperationalError, connections
from django.db.backends.base.base import NO_DB_ALIAS
from django.db.backends.postgresql import base
from django.db.utils import DatabaseErrorWrapper
from psycopg import abc
from psycopg._preparing import Prepare
from psycopg._queries import PostgresRawQuery
from psycopg.adapt import Transformer
from psycopg.errors import error_from_result
from psycopg.pq import DiagnosticField, ExecStatus, Format, TransactionStatus
from psycopg.pq.abc import PGresult
from psycopg.types.array import ListBinaryDumper
from psycopg.types.numeric import Int8BinaryDumper, Int8Dumper
from psycopg_pool import ConnectionPool

from broker_project.core import boot_clock

AWAY: Final = ("08", "25006", "57P", "53100", "53300")
"""What begins the SQLSTATE of an error that says so; a server that only reads is not the one that was asked for."""
OUTAGES: Final = (psycopg.errors.ReadOnlySqlTransaction, psycopg.errors.IdleInTransactionSessionTimeout)
"""Errors of the server or the session, and of no statement, which psycopg takes for internal ones."""


class NotAnswered(OperationalError):
    """The database did not answer in time: it may carry the statement out later."""


class RowLocked(OperationalError):
    """Somebody else has locked a row for longer than the statement may wait."""


Arguments = Mapping[str, Any] | Sequence[Any]
Rows = list[tuple[Any, ...]]
PreparedStatement = tuple[bytes, Sequence[Any]]
"""A statement with `$1` and so on, and its values."""
PreparedQuery = tuple[bytes, Any, Any, Format]
"""The name of a statement that the server has prepared, its values and their formats; the rows come in binary."""


ANSWER_SECONDS: Final = 35.0
"""Longer than the server works on a statement (`statement_timeout`): after it the server hangs or has vanished."""


class _Waits(threading.local):
    """How long this thread waits for the database."""

    until: float | None = None
    """Time since boot; None: `seconds` for each statement."""
    seconds: float = ANSWER_SECONDS

    def end(self) -> float:
        """Return the time since boot until which a statement that begins now is waited for."""
        return boot_clock.since_boot() + self.seconds if self.until is None else self.until


_waits: Final = _Waits()
INTERVAL_SECONDS: Final = 0.1
"""How often a wait looks for signals, as psycopg's own do."""


SUCCEEDED: Final = (ExecStatus.COMMAND_OK, ExecStatus.TUPLES_OK)


class Connection(psycopg.Connection[Any]):
    """A connection that gives up when the server has not answered by the time until which its thread waits."""

    @cached_property
    def _transformer(self) -> abc.Transformer:
        """Converts values and rows; kept, since finding out how costs more than converting a few."""
        return Transformer(self)

    def run(
        self,
        statements: Sequence[PreparedStatement],
        meanwhile: Callable[[], object] | None = None,
        *,
        commits: bool = False,
    ) -> list[Rows]:
        """Run prepared statements in one round trip, and in one transaction; return the rows of each.

        `meanwhile` is called while the server works; if it `commits`, the transaction is committed with them. Without
        psycopg's cursors and its pipeline, which take three times the CPU time, and let other threads take Python's
        lock ten times.
        """
        transformer, found = self._transformer, []
        try:
            queries = [self._prepared_query(*statement) for statement in statements]
            for result in self._results(queries, meanwhile, commits=commits):
                transformer.set_pgresult(succeeded(result))
                found.append(transformer.load_rows(0, result.ntuples, tuple))
        except psycopg.errors.ReadOnlySqlTransaction:
            self.pgconn.finish()  # a session keeps its default, and may be that of a former primary
            raise
        transformer.set_pgresult(None)  # or it would keep the last result in memory
        return found[: len(statements)]  # without that of the commit, which has succeeded too

    def _prepared_query(self, statement: bytes, values: Sequence[Any]) -> PreparedQuery:
        query = PostgresRawQuery(self._transformer)
        query.convert(statement, values)
        state, name = self._prepared.get(query, prepare=True)
        if state is Prepare.SHOULD:
            self.pgconn.send_prepare(name, query.query, query.types)
            prepared = [succeeded(self._result())]
        if new := self._prepared.maybe_add_to_cache(query, state, name):  # or notes that it is used: it is kept then
            self._prepared.validate(new, state, name, prepared)
            self.wait(self._prepared.maintain_gen(self))
        return name, query.params, query.formats, Format.BINARY

    def _results(
        self, queries: Sequence[PreparedQuery], meanwhile: Callable[[], object] | None, *, commits: bool
    ) -> list[PGresult]:
        server = self.pgconn
        lacks_begin = not self.autocommit and server.transaction_status == TransactionStatus.IDLE
        if len(queries) == 1 and not lacks_begin and not commits:
            server.send_query_prepared(*queries[0])
            if meanwhile:
                meanwhile()
            return [self._result()]
        server.enter_pipeline_mode()
        if lacks_begin:
            server.send_query_params(b"BEGIN", None)
        for query in queries:
            server.send_query_prepared(*query)
        if commits:
            server.send_query_params(b"COMMIT", None)
        server.pipeline_sync()
        if meanwhile:
            meanwhile()
        results = [self._result() for _ in range(lacks_begin + len(queries) + commits)]
        end = self._next_result()  # of the sync
        if end and end.status == ExecStatus.FATAL_ERROR:  # the statements' own commit has failed, before the sync
            results[-1] = end
            self._next_result()  # none: the end of its results
            self._next_result()  # of the sync
        server.exit_pipeline_mode()
        return results[lacks_begin:]

    def _result(self) -> PGresult:
        """Return the result of the statement that was sent first, or what its own commit failed with."""
        result = self._next_result()
        if result is None:
            raise psycopg.OperationalError(self.pgconn.get_error_message())
        while further := self._next_result():
            result = further
        return result

    def _next_result(self) -> PGresult | None:
        server, end = self.pgconn, _waits.end()
        while (is_unsent := server.flush()) or server.is_busy():
            ready = select.poll()
            ready.register(server.socket, select.POLLIN | (select.POLLOUT if is_unsent else 0))
            if not ready.poll(max(1.0, (end - boot_clock.since_boot()) * 1000)):
                server.finish()
                raise NotAnswered("the database did not answer in time")
            server.consume_input()
        return server.get_result()

    def wait(self, gen: Any, interval: float = INTERVAL_SECONDS, timeout: float | None = None) -> Any:
        """Wait until an exchange with the server is over."""
        end = _waits.end() if timeout is None else boot_clock.since_boot() + timeout
        try:
            return super().wait(gen, interval, max(0.001, end - boot_clock.since_boot()))
        except psycopg.errors.ReadOnlySqlTransaction:
            self.pgconn.finish()
            raise
        except psycopg.OperationalError as failure:
            if timeout is not None or boot_clock.since_boot() < end:
                raise
            self.pgconn.finish()
            raise NotAnswered("the database did not answer in time") from failure


def succeeded(result: PGresult) -> PGresult:
    """Return the result of a statement, or raise what it failed with."""
    if result.status in SUCCEEDED:
        return result
    if result.error_field(DiagnosticField.SQLSTATE) is None:  # the server did not say it: the connection is broken
        raise psycopg.OperationalError(result.get_error_message())
    raise error_from_result(result)


class Pool(ConnectionPool[Connection]):
    """Lends the connection that was returned last.

    The caches of its server process are warm: taking turns, as psycopg does, costs a fifth of PostgreSQL's CPU time.
    """

    def _get_ready_connection(self, timeout: float | None) -> Connection | None:
        self._pool.rotate()  # the last one becomes the first, which is lent
        return super()._get_ready_connection(timeout)


class DatabaseErrors(DatabaseErrorWrapper):
    """Raises Django's errors in place of psycopg's; an outage is always an `OperationalError`."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if isinstance(error, OUTAGES):
            self.wrapper.errors_occurred = True  # type: ignore[attr-defined]  # the stubs lack it
            raise OperationalError(*error.args).with_traceback(traceback) from error
        super().__exit__(kind, error, traceback)


on_connect: Final[list[Callable[[psycopg.Connection[Any]], object]]] = []
"""What looks at each new connection of this process before it is used, and may refuse it with a `psycopg.Error`."""


class DatabaseWrapper(base.DatabaseWrapper):
    """A thread's connection, taken from the pool."""

    _connection_pools: ClassVar[dict[str, Pool]] = {}  # Django's name

    @cached_property
    def wrap_database_errors(self) -> DatabaseErrors:
        """Django's name; a context."""
        return DatabaseErrors(self)

    @property
    def pool(self) -> Pool | None:
        """The pool of this process, if it has one."""
        options = self.settings_dict["OPTIONS"].get("pool")
        if not options or self.alias == NO_DB_ALIAS:
            return None
        if self.alias not in self._connection_pools:
            pool = Pool(
                kwargs={**self.get_connection_params(), "autocommit": True},
                connection_class=Connection,
                open=False,
                configure=self._configure_connection,
                check=check,
                **options,
            )
            self._connection_pools.setdefault(self.alias, pool)
        return self._connection_pools[self.alias]

    def _configure_connection(self, connection: Connection) -> Any:
        # `prepare=True` prepares at the first execution; Django disables that, and its own cursors never prepare.
        connection.prepare_threshold = 2
        # One type for all integers: by default the type follows the value, and each type is another statement.
        connection.adapters.register_dumper(int, Int8Dumper)
        connection.adapters.register_dumper(int, Int8BinaryDumper)
        connection.adapters.register_dumper(list, ListBinaryDumper)  # bytes take half the room, and less time
        is_changed = super()._configure_connection(connection)  # type: ignore[misc]  # the stubs lack it
        for look_at in on_connect:
            look_at(connection)
        return is_changed


def check(connection: "psycopg.Connection[Any]") -> None:
    """Check a connection that is about to be lent, if it has become readable: usually the server has closed it.

    Checking every time would cost every request a round trip. A broken connection raises `psycopg.Error`.
    """
    readable = select.poll()
    readable.register(connection.fileno(), select.POLLIN)
    if readable.poll(0):
        ConnectionPool.check_connection(connection)
    if not connection.autocommit:  # closed inside a transaction
        connection.autocommit = True


@contextmanager
def waits_until(end: float) -> Iterator[None]:
    """Let no statement of this thread wait for an answer after `end` (time since boot): it raises `NotAnswered`."""
    before, _waits.until = _waits.until, end
    try:
        yield
    finally:
        _waits.until = before


@contextmanager
def answered_within(seconds: float) -> Iterator[None]:
    """Let each statement of this thread wait at most `seconds` for an answer, then raise `NotAnswered`."""
    before, _waits.seconds = _waits.seconds, seconds
    try:
        yield
    finally:
        _waits.seconds = before


PLACEHOLDER: Final = re.compile(rb"%(?:(%)|s|\((\w+)\)s)")


@cache
def _numbered(statement: LiteralString) -> tuple[bytes, Sequence[str]]:
    """Return a statement as PostgreSQL knows it, `$1` for `%s` and `%(name)s`, and the names in their order.

    psycopg would look for these at each execution of a long statement, which is as much work as all the rest.
    """
    places: dict[bytes, int] = {}
    numbers = count(1)

    def place(found: re.Match[bytes]) -> bytes:
        percent, name = found.groups()
        if percent:
            return percent
        return b"$%d" % (places.setdefault(name, len(places) + 1) if name else next(numbers))

    return PLACEHOLDER.sub(place, statement.encode()), [name.decode() for name in places]


def rows(statement: LiteralString, arguments: Arguments = (), *, is_last: bool = False) -> Rows:
    """Run a prepared statement, in this thread's open transaction if there is one, and return its rows.

    If it is the last one of the transaction, the commit travels with it.

    Raises:
        RowLocked, NotAnswered, django.db.Error
    """
    return rows_of_each([(statement, arguments)], is_last=is_last)[0]


def rows_of_each(
    statements: Sequence[tuple[LiteralString, Arguments]],
    meanwhile: Callable[[], object] | None = None,
    *,
    is_last: bool = False,
) -> list[Rows]:
    """Run prepared statements in one round trip, and in one transaction; return the rows of each.

    `meanwhile` is called while the server works. If `is_last`, the transaction's commit travels with them.
    """
    database: Any = connections[DEFAULT_DB_ALIAS]
    prepared = [as_prepared(*statement) for statement in statements]
    try:
        with database.wrap_database_errors:
            if database.pool is not None and database.connection is None and not database.in_atomic_block:
                return _run_once(database.pool, prepared, meanwhile)
            if database.connection is None:
                database.ensure_connection()
            own: Connection = database.connection
            commits = is_last and len(database.atomic_blocks) == 1 and not database.needs_rollback
            return own.run(prepared, meanwhile, commits=commits)
    except OperationalError as failure:
        if isinstance(failure.__cause__, psycopg.errors.LockNotAvailable):
            raise RowLocked(*failure.args) from failure.__cause__
        raise


def _run_once(pool: Pool, prepared: Sequence[PreparedStatement], meanwhile: Callable[[], object] | None) -> list[Rows]:
    """Run statements on a connection that is lent for them only.

    A thread that kept one for a whole request would have it while it waits for Python, and more server processes would
    take turns.
    """
    pool.open()
    connection = pool.getconn()
    try:
        return connection.run(prepared, meanwhile)
    finally:
        pool.putconn(connection)


def as_prepared(statement: LiteralString, arguments: Arguments) -> PreparedStatement:
    """Return a statement as PostgreSQL knows it, with `$1` and so on, and their values."""
    text, names = _numbered(statement)
    return text, [arguments[name] for name in names] if isinstance(arguments, Mapping) else arguments


def array(values: Iterable[int | bool | str | None]) -> str:
    """Return numbers, truths or quoted texts as PostgreSQL writes an array: a tenth of what psycopg takes."""
    return "{" + ",".join(["NULL" if value is None else str(value) for value in values]) + "}"


def is_away(failure: Exception) -> bool:
    """Return whether a statement failed because the server cannot be reached, ends, or lacks connections or disk."""
    if not isinstance(failure, InterfaceError | OperationalError):
        return False
    state = getattr(failure.__cause__, "sqlstate", None)
    return state is None or state.startswith(AWAY)


def forget_connection() -> None:
    """Close this thread's connection. The next statement opens a new one."""
    connections[DEFAULT_DB_ALIAS].close()


def give_connection_back() -> None:
    """Return this thread's connection to the pool while the thread waits, unless a transaction is open."""
    if not connections[DEFAULT_DB_ALIAS].in_atomic_block:
        forget_connection()
