"""What histories share, and workers on connections and clocks of their own, with points at which they can be broken."""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final
from unittest.mock import patch

import psycopg
from django.db import connection, connections, transaction
from django.db.backends.postgresql.psycopg_any import IsolationLevel

from broker_project.core import boot_clock, db
from broker_project.core.database_clock import DATABASE_CLOCK
from broker_project.core.db import Rows, rows
from broker_project.postgresql.base import DatabaseWrapper
from delivery import retry
from delivery.dispatch import claim, notify
from delivery.maintenance import incarnation
from delivery.maintenance.partitions import SEQUENCES, first_id, today
from delivery.webhook import content, destination
from delivery.worker import buffer, leases, line, queue
from subscriptions.models import EventKind, EventType, Subscriber
from subscriptions.models.subscribers import Processing
from subscriptions.retry_policies import ACTIONS, Action, OnExhausted
from tests.support.broker import QUEUE_SENDERS, publish_bodies
from tests.support.factories import event_type, retry_policy, subscriber, subscription
from tests.support.stepped_worker import Request, SteppedWorker

RETRIES: Final = 2
"""After which the policy of the retry line gives up."""
LONG_SECONDS: Final = 240.0
"""Longer than a history takes, and no longer than a pause may be (contract 5.9)."""
REAL_TIMES: Final = (
    (retry, "FIRST_PAUSE_SECONDS"), (retry, "MAX_PAUSE_SECONDS"), (claim, "LEASE_SECONDS"),
    (line, "RETRY_LINE_REST_SECONDS"), (line, "RETRY_LINE_REST_SHARE"), (queue, "CUT_SHORT_SECONDS"),
    (buffer, "HANGING_SECONDS"),
)  # fmt: skip
"""What PostgreSQL's clock would end. All are as long: a pause or a lease ends only by what the history does."""
TICK_SECONDS: Final = 0.0001
"""What each look at a worker's clock takes."""

JUMP_SECONDS: Final = 3600.0
AHEAD: Final = f"""
UPDATE delivery_line SET lease_until = lease_until - make_interval(secs => {JUMP_SECONDS}) WHERE lease_until IS NOT NULL
"""
"""The clock is ahead of all that was written before: all leases have run out by it, also those of workers that live."""
ENDED: Final = f"clock_timestamp() - make_interval(secs => {JUMP_SECONDS} + 1)"
"""When a lease ended that has run out by any clock."""
BACK: Final = """
WITH lines AS (
  UPDATE delivery_line SET lease_until = lease_until + interval '2 hours', due_at = due_at + interval '2 hours'),
holds AS (UPDATE delivery_hold SET due_at = due_at + interval '2 hours'),
groups AS (UPDATE delivery_queuegroup SET due_at = due_at + interval '2 hours' WHERE due_at IS NOT NULL)
UPDATE delivery_open SET due_at = due_at + interval '2 hours' WHERE due_at IS NOT NULL
"""
"""All leases and pauses last for two hours more."""
SOON: Final = "<= clock_timestamp() + interval '1 hour'"
"""What lies further ahead does not end while a history lasts."""
LAPSE: Final = f"""
UPDATE delivery_line SET lease_until = {ENDED}
 WHERE lease_until {SOON} AND (id, epoch) NOT IN (SELECT * FROM unnest(%s::bigint[], %s::bigint[]))
   AND worker <> ALL (%s)
"""
END_PAUSES: Final = f"""
WITH lines AS (UPDATE delivery_line SET due_at = clock_timestamp() WHERE due_at {SOON}),
holds AS (UPDATE delivery_hold SET due_at = clock_timestamp() WHERE due_at {SOON}),
groups AS (UPDATE delivery_queuegroup SET due_at = clock_timestamp() WHERE due_at {SOON})
UPDATE delivery_open SET due_at = clock_timestamp() WHERE due_at {SOON}
"""

DUMPS: Final = r"""
CREATE SCHEMA histories;
CREATE FUNCTION histories.save(dump text) RETURNS void LANGUAGE plpgsql AS $$
DECLARE one record;
BEGIN
  SET LOCAL client_min_messages = warning;
  EXECUTE format('DROP SCHEMA IF EXISTS %I CASCADE', dump);
  EXECUTE format('CREATE SCHEMA %I', dump);
  FOR one IN SELECT relname AS name, relkind AS kind FROM pg_class
              WHERE relnamespace = 'public'::regnamespace AND relname <> 'delivery_incarnation'
                AND (relname LIKE 'delivery\_%'
                     OR relname IN ('subscriptions_subscription', 'subscriptions_subscriber'))
                AND (relkind = 'S' OR relkind = 'r' AND pg_relation_size(oid) > 0)
  LOOP
    EXECUTE format('CREATE TABLE %1$I.%2$I AS SELECT %3$s FROM public.%2$I', dump, one.name,
                   CASE one.kind WHEN 'r' THEN histories.columns_of(one.name) ELSE 'last_value, is_called' END);
  END LOOP;
END $$;
CREATE FUNCTION histories.restore(dump text) RETURNS void LANGUAGE plpgsql AS $$
DECLARE one record;
BEGIN
  SET LOCAL session_replication_role = replica;  -- neither triggers nor foreign keys
  FOR one IN SELECT relname AS name FROM pg_class
              WHERE relkind = 'r' AND relname LIKE 'delivery\_%' AND relname <> 'delivery_incarnation'
                AND relnamespace = 'public'::regnamespace AND pg_relation_size(oid) > 0
  LOOP
    EXECUTE format('DELETE FROM public.%I', one.name);
  END LOOP;
  FOR one IN SELECT d.relname AS name, p.relkind AS kind
               FROM pg_class d JOIN pg_class p ON p.relname = d.relname AND p.relnamespace = 'public'::regnamespace
              WHERE d.relnamespace = dump::regnamespace AND d.relkind = 'r'
  LOOP
    IF one.kind = 'S' THEN
      EXECUTE format('SELECT setval(%L, last_value, is_called) FROM %I.%I', 'public.' || one.name, dump, one.name);
    ELSE
      EXECUTE format('DELETE FROM public.%I', one.name);
      EXECUTE format('INSERT INTO public.%1$I (%2$s) SELECT %2$s FROM %3$I.%1$I', one.name,
                     histories.columns_of(one.name), dump);
    END IF;
  END LOOP;
END $$;
CREATE FUNCTION histories.columns_of(tables_name text) RETURNS text LANGUAGE sql AS $$
  SELECT string_agg(quote_ident(attname), ', ' ORDER BY attnum) FROM pg_attribute
   WHERE attrelid = ('public.' || tables_name)::regclass AND attnum > 0 AND NOT attisdropped AND attgenerated = ''
$$;
"""
"""Save all that a history changes as tables of a schema, and bring it back."""
DROP_DUMPS: Final = "DROP SCHEMA IF EXISTS histories, beginning, dump CASCADE"
BEGINNING, DUMP = "beginning", "dump"
"""What each history begins with, and what one of them has saved."""
EMPTY: Final = r"""
SET LOCAL session_replication_role = replica;
DELETE FROM delivery_delivery; DELETE FROM delivery_queuegroup; DELETE FROM delivery_message;
UPDATE delivery_incarnation SET identity = database_identity();  -- the database may be a copy
SELECT setval(oid::regclass, CASE WHEN relname = ANY ('{of_days}') THEN {first} ELSE 1 END, false)
  FROM pg_class WHERE relkind = 'S' AND relname LIKE 'delivery\_%' AND relname <> 'delivery_line_id_seq'
"""
"""Ids begin again with each history, so that the same seed gives the same ids wherever it is run."""
NO_TRIP: Final = frozenset({"_set_autocommit_gen", "_start_query", "maintain_gen"})
"""What asks the server nothing, or does so within a round trip that counts."""


class Killed(BaseException):
    """The process is gone: nothing in it handles this."""


def end_process() -> None:
    """End the process of a worker."""
    raise Killed


class Connection(db.Connection):
    """One that breaks when `point` raises; the server then undoes the open transaction."""

    point: Callable[[bool], None] | None = None
    """Called before and after each round trip, with whether a transaction is open; None: nobody has this connection."""
    is_broken = False

    def run(self, statements: Sequence[tuple[bytes, Sequence[Any]]], *arguments: Any, **options: Any) -> list[Rows]:
        self._pass()
        found = super().run(statements, *arguments, **options)
        self._pass()
        return found

    def wait(self, gen: Any, *arguments: Any, **options: Any) -> Any:
        if gen.__name__ in NO_TRIP:
            return super().wait(gen, *arguments, **options)
        self._pass()
        result = super().wait(gen, *arguments, **options)
        self._pass()
        return result

    def undo(self) -> None:
        if not self.closed:
            super().wait(self._rollback_gen())

    def _pass(self) -> None:
        if self.is_broken:
            raise psycopg.OperationalError("the connection is broken")
        try:
            if self.point:
                self.point(self.pgconn.transaction_status != psycopg.pq.TransactionStatus.IDLE)
        except BaseException:
            self.undo()
            self.is_broken = True
            raise


class Database(DatabaseWrapper):
    """The database as one worker sees it; its connections are used again, with the statements they have prepared."""

    def __init__(self, made: list[Connection], point: Callable[[bool], None]) -> None:
        configured = connections["default"].settings_dict
        options = {name: value for name, value in configured["OPTIONS"].items() if name != "pool"}
        super().__init__({**configured, "OPTIONS": options}, "default")
        self.isolation_level = IsolationLevel.READ_COMMITTED
        self._made, self._point = made, point
        self._guard = incarnation.Guard()

    def get_new_connection(self, conn_params: dict[str, Any]) -> Connection:
        found = next((one for one in self._made if one.point is None), None)
        if found is None:
            found = Connection.connect(**conn_params)
            self._made.append(found)
        found.point, found.is_broken = self._point, False
        return found

    @property
    def has_connected(self) -> bool:
        """Whether the worker knows an incarnation of the database: it ends when another one has begun."""
        return self._guard._known != ""

    def init_connection_state(self) -> None:
        super().init_connection_state()
        self._guard(self.connection)

    def _close(self) -> None:
        if self.connection is not None:
            self.connection.point = None
            if not self.connection.closed:
                self.connection.undo()
                self.connection.autocommit = True


class Worker(SteppedWorker):
    """One worker process, a round at a time."""

    def __init__(
        self,
        name: str,
        made: list[Connection],
        point: Callable[["Worker", bool | None], None],
        on_request: Callable[["Worker", Request], None],
    ) -> None:
        super().__init__(name, self._left)
        self.clock = 1.0
        """Monotonic, in seconds."""
        self._point, self._on_request = point, on_request
        self.database = Database(made, lambda in_transaction: point(self, in_transaction))

    def monotonic(self) -> float:
        self.clock += TICK_SECONDS
        return self.clock

    def go(self) -> None:
        """Go one round."""
        self._rounds.answered(self.wire.late())
        self._rounds.go()
        self.lines = self._rounds.all()

    def _left(self, request: Request) -> None:
        self._on_request(self, request)
        self._point(self, None)


@dataclass(slots=True)
class World:
    """Who subscribes to what, in a database that is reset for each history."""

    database: Any
    types: list[EventType]
    owners: dict[int, Subscriber]
    """By subscription."""
    retried: int
    """The subscription whose policy uses the retry line."""
    made: list[Connection] = field(default_factory=list)
    restores: int = 0
    """How often the database has been restored in this history."""
    random: Random = field(default_factory=Random)
    """What workers choose by: other threads of this process do not."""
    monotonic: Callable[[], float] = lambda: 0.0
    """Of the worker whose code runs."""

    def without_jumps(self, _seconds: float) -> float:
        """Return the database's time without a jump: it may come between this and the statement for which it is."""
        return time.time() - JUMP_SECONDS

    def reset(self, seed: int) -> None:
        """Let everything be as before the first history."""
        self.random.seed(seed)
        self.restores = 0
        self._bring_back(BEGINNING)

    def save(self, dump: str) -> None:
        """Dump the database as it is."""
        rows("SELECT histories.save(%s)", [dump])

    def restore(self) -> None:
        """Restore the dump, which breaks the connections of workers; somebody else connects and notices it.

        Ids do not depend on the time of day, since they say which sender has a message: it is past noon.
        """
        while self.made:
            self.made.pop().close()
        self._bring_back(DUMP)
        self.restores += 1
        clock = f"(date_trunc('day', clock_timestamp()) + interval '12 hours {self.restores} minutes')"
        statements = [
            one.replace("clock_timestamp()", clock) if "setval" in one else one for one in incarnation.STATEMENTS
        ]
        with patch.object(incarnation, "STATEMENTS", statements):
            incarnation.begin_after_restore()

    def _bring_back(self, dump: str) -> None:
        content._alive.clear()  # by ids that are given out again
        content._recent._contents.clear()
        destination._latest.clear()
        destination._policies.clear()
        rows("SELECT histories.restore(%s)", [dump])


@contextmanager
def prepared_world() -> Iterator[World]:
    """Set up subscribers in an empty database, and take over the clock."""
    first, second = event_type("Test.First"), event_type("Test.Second")
    work = event_type("Test.Work", EventKind.QUEUE)
    strict, retried = subscriber("strict"), subscriber("retried")
    many = subscriber("many", processing=Processing.CONCURRENT, concurrency=3)
    keyed = subscriber("keyed", processing=Processing.KEYED, concurrency=2, ordering_key="$$->>'Body'")
    terms: dict[str, Any] = dict.fromkeys(ACTIONS, Action.RETRY_LANE)
    policy = retry_policy(**terms, max_retries=RETRIES, on_exhausted=OnExhausted.FAIL, initial_delay_seconds=60.0)
    made = [subscription(retried, first, retry_policy=policy)]
    made += [subscription(*pair) for pair in ((strict, first), (strict, second), (many, second), (retried, second))]
    made += [subscription(keyed, first), subscription(keyed, second)]
    made += [subscription(event_type=work, filter=text) for text in ("", "", "$$->'Header' is not null")]
    publish_bodies(work, *[b"0"] * QUEUE_SENDERS)  # makes the senders' lines
    empty = EMPTY.replace("{first}", str(first_id(today()))).replace("{of_days}", f"{{{','.join(SEQUENCES)}}}")
    with connection.cursor() as cursor, transaction.atomic():
        cursor.execute(DUMPS + empty)
    world = World(connections["default"], [first, second, work], {one.pk: one.subscriber for one in made}, made[0].pk)
    world.save(BEGINNING)
    real = time.monotonic
    breaker = notify._Breaker()
    breaker._open_until = math.inf  # no hints: the history says what is woken
    with ExitStack() as patches:
        for module, name in REAL_TIMES:
            patches.enter_context(patch.object(module, name, LONG_SECONDS))
        patches.enter_context(patch.object(leases, "random", world.random))
        patches.enter_context(patch.object(queue, "OPEN_DELIVERIES", f"{queue.OPEN_DELIVERIES} ORDER BY d.id"))
        for module, name in ((time, "monotonic"), (boot_clock, "since_boot")):
            patches.enter_context(patch.object(module, name, lambda: world.monotonic()))  # noqa: PLW0108 - it changes
        patches.enter_context(patch.object(notify, "breaker", breaker))
        patches.enter_context(patch.object(incarnation, "end_process", end_process))
        patches.enter_context(patch.object(DATABASE_CLOCK, "without_jumps", world.without_jumps))
        try:
            yield world
        finally:
            world.monotonic = real
            for one in world.made:
                one.close()
            with connection.cursor() as cursor:
                cursor.execute(DROP_DUMPS)
