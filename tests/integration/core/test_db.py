"""Connections lent by the pool: asked whether they answer only where there is reason to."""

import time
from collections.abc import Callable
from contextlib import suppress
from typing import LiteralString

import psycopg
import pytest
from django.db import (
    DatabaseError,
    DataError,
    InterfaceError,
    OperationalError,
    ProgrammingError,
    connection,
    transaction,
)
from psycopg._preparing import PrepareManager
from psycopg_pool import ConnectionPool

from broker_project.core.db import (
    NotAnswered,
    forget_connection,
    give_connection_back,
    is_away,
    rows,
    rows_of_each,
    waits_until,
)
from broker_project.stack.load.wait import wait_until
from tests.support.broker import terminate_backends
from tests.support.database import another_connection, execute

SESSIONS = "SELECT FROM pg_stat_activity WHERE pid = %s"
REFUSE_COMMITS = """
CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RAISE EXCEPTION ''refused''; END';
CREATE CONSTRAINT TRIGGER refuse AFTER INSERT ON delivery_announcement DEFERRABLE INITIALLY DEFERRED
  FOR EACH ROW EXECUTE FUNCTION refuse()
"""

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sessions that were asked whether they answer."""
    found: list[int] = []
    ask = ConnectionPool.check_connection

    def note(one: "psycopg.Connection[object]") -> None:
        found.append(one.info.backend_pid)
        ask(one)

    monkeypatch.setattr(ConnectionPool, "check_connection", staticmethod(note))
    return found


def session() -> int:
    """Borrow a connection, say whose it is, and give it back."""
    ((found,),) = execute("SELECT pg_backend_pid()")
    give_connection_back()
    return int(found)


def test_silent_connection_is_not_checked(asked: list[int]) -> None:
    assert {session() for _ in range(20)}
    assert not asked


def test_closed_connection_is_checked_and_replaced(asked: list[int]) -> None:
    ended = session()
    with another_connection() as elsewhere:
        elsewhere.execute("SELECT pg_terminate_backend(%s)", [ended])
        wait_until(lambda: not elsewhere.execute(SESSIONS, [ended]).fetchall())
    assert ended not in {session() for _ in range(20)}
    assert asked == [ended]


def test_statements_borrow_the_connection_that_was_returned_last() -> None:
    rows("SELECT 1")  # opens the pool
    pool = connection.pool  # type: ignore[attr-defined]  # it is PostgreSQL's
    lent = [pool.getconn(), pool.getconn()]
    for one in lent:
        pool.putconn(one)
    assert {rows("SELECT pg_backend_pid()")[0][0] for _ in range(20)} == {lent[-1].info.backend_pid}
    assert connection.connection is None


def test_connection_that_was_closed_in_a_transaction_is_lent_without_one() -> None:
    with suppress(InterfaceError, ProgrammingError), transaction.atomic():
        rows("SELECT 1")
        connection.close()
    rows("CREATE TEMPORARY TABLE kept ()")
    assert rows("SELECT to_regclass('kept') IS NOT NULL") == [(True,)]


def test_statement_on_a_lost_connection_fails_and_the_next_one_gets_another() -> None:
    connection.ensure_connection()
    ((lost,),) = rows("SELECT pg_backend_pid()")
    with another_connection() as elsewhere:
        elsewhere.execute("SELECT pg_terminate_backend(%s)", [lost])
        wait_until(lambda: not elsewhere.execute(SESSIONS, [lost]).fetchall())
    with pytest.raises(OperationalError):
        rows("SELECT pg_backend_pid()")
    forget_connection()
    assert rows("SELECT pg_backend_pid()") != [(lost,)]


def test_statement_is_prepared_again_after_a_rollback() -> None:
    for number in (1, 2):
        with suppress(DataError), transaction.atomic():
            assert rows("SELECT %s", [number]) == rows("SELECT %s", [number]) == [(number,)]
            rows("SELECT 1 / %s", [0])


def test_no_statement_of_a_round_trip_makes_the_session_forget_another_one_of_it() -> None:
    connection.ensure_connection()
    first, other = ("SELECT 'first'", ()), ("SELECT 'other'", ())
    rows(*first)
    for number in range(1, PrepareManager.prepared_max):
        rows("SELECT" + number * " ")
    assert rows_of_each([first, other]) == [[("first",)], [("other",)]]


def test_statements_of_one_round_trip_are_one_transaction() -> None:
    note = "INSERT INTO delivery_announcement (kind) VALUES (%s)"
    with pytest.raises(DataError):
        rows_of_each([(note, ["first"]), ("SELECT 1 / %s", [0]), (note, ["third"])])
    count = "SELECT count(*) FROM delivery_announcement"
    assert rows_of_each([(count, ()), (note, ["next"]), (count, ())]) == [[(0,)], [], [(1,)]]


def test_commit_travels_with_the_last_statement_of_a_transaction(elsewhere: "psycopg.Connection[object]") -> None:
    note, count = "INSERT INTO delivery_announcement (kind) VALUES (%s)", "SELECT count(*) FROM delivery_announcement"

    def stored() -> object:
        return elsewhere.execute(count).fetchall()

    with suppress(ZeroDivisionError), transaction.atomic():
        with transaction.atomic():
            rows(note, ["not the last of the outer one"], is_last=True)
        assert stored() == [(0,)]
        raise ZeroDivisionError
    with suppress(DataError), transaction.atomic():
        rows(note, ["first"])
        rows("SELECT 1 / %s", [0], is_last=True)
    assert stored() == [(0,)]
    with transaction.atomic():
        rows(note, ["first"])
        rows(note, ["last"], is_last=True)
        assert stored() == [(2,)]
    with transaction.atomic():
        transaction.set_rollback(True)
        rows(note, ["to be undone"], is_last=True)
    with transaction.atomic():
        assert rows_of_each([(count, ()), (count, ())], is_last=True) == [[(2,)], [(2,)]]


@pytest.mark.parametrize("number", [1, 2])
@pytest.mark.parametrize("is_lent", [True, False])
def test_a_commit_that_fails_without_a_transaction_is_an_error(number: int, *, is_lent: bool) -> None:
    execute(REFUSE_COMMITS)
    if is_lent:
        forget_connection()
    with pytest.raises(DatabaseError, match="refused"):
        rows_of_each([("INSERT INTO delivery_announcement (kind) VALUES ('refused')", ())] * number)
    execute("DROP FUNCTION refuse() CASCADE")
    assert rows("SELECT count(*) FROM delivery_announcement") == [(0,)]


def test_a_commit_that_fails_with_the_last_statement_is_an_error() -> None:
    execute(REFUSE_COMMITS)
    told: list[bool] = []

    def announce() -> None:
        with transaction.atomic():
            transaction.on_commit(lambda: told.append(True))
            rows("INSERT INTO delivery_announcement (kind) VALUES ('refused')", is_last=True)

    with pytest.raises(DatabaseError, match="refused"):
        announce()
    execute("DROP FUNCTION refuse() CASCADE")
    assert (told, rows("SELECT count(*) FROM delivery_announcement")) == ([], [(0,)])


@pytest.mark.parametrize("number", [1, 2])
def test_statements_may_be_larger_than_what_a_socket_holds(number: int) -> None:
    text = "x" * 20_000_000
    with waits_until(time.monotonic() + 60.0):
        assert rows_of_each([("SELECT %s::text", [text])] * number) == [[(text,)]] * number


@pytest.mark.parametrize("number", [1, 2])
def test_the_caller_does_something_while_the_server_works(number: int, elsewhere: "psycopg.Connection[object]") -> None:
    """The statements wait for a lock until that is done."""
    elsewhere.execute("SELECT pg_advisory_lock(1)")
    with waits_until(time.monotonic() + 60.0):
        statements = [("SELECT true FROM (SELECT pg_advisory_xact_lock(1)) l", ())] * number
        found = rows_of_each(statements, lambda: elsewhere.execute("SELECT pg_advisory_unlock(1)"))
    assert found == [[(True,)]] * number


@pytest.mark.parametrize("number", [1, 2])
def test_a_server_that_does_not_answer_is_given_up(number: int) -> None:
    with waits_until(time.monotonic() + 0.2), pytest.raises(NotAnswered):
        rows_of_each([("SELECT pg_sleep(60)", ())] * number)
    forget_connection()
    assert rows("SELECT 1") == [(1,)]
    terminate_backends()  # the server goes on all the same


@pytest.mark.parametrize("run", [rows, execute])
def test_session_of_a_read_only_server_is_not_used_again(run: Callable[[LiteralString], object]) -> None:
    rows("SET default_transaction_read_only = on")
    with pytest.raises(OperationalError) as caught:
        run("INSERT INTO delivery_announcement (kind) VALUES ('x')")
    assert is_away(caught.value)
    forget_connection()
    run("INSERT INTO delivery_announcement (kind) VALUES ('x')")


@pytest.mark.behaviour("11.5")
def test_a_statement_that_takes_the_server_too_long_is_no_outage() -> None:
    with transaction.atomic():
        execute("SET LOCAL statement_timeout = 10")
        with pytest.raises(OperationalError) as ended:
            rows("SELECT pg_sleep(60)")
        transaction.set_rollback(True)
    assert not is_away(ended.value)


def test_connection_in_a_transaction_is_kept() -> None:
    with transaction.atomic():
        session()
        assert connection.connection is not None
        session()
    session()
    assert connection.connection is None
