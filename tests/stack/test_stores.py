"""The embedded PostgreSQL and Redis."""

import os
import signal
import threading
from dataclasses import replace
from pathlib import Path

import psycopg
import pytest
import redis

from broker_project.redis_transport import check_redis_at_start
from broker_project.stack import postgres as postgres_module
from broker_project.stack.folders import AlreadyRunning, StackError, StackFolder
from broker_project.stack.ports import any_free
from broker_project.stack.postgres import Postgres, end_predecessor
from broker_project.stack.stores import RedisServer, running_stores, supervised


@pytest.fixture(autouse=True)
def nobody_brings_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DATABASE_URL", raising=False)
    monkeypatch.delenv("REDIS_URL", raising=False)


def test_postgresql_data_survives_a_restart(tmp_path: Path) -> None:
    folder = tmp_path / 'of "my" broker'
    folder.mkdir()
    with running_stores(folder) as first, psycopg.connect(first.environment["DATABASE_URL"]) as connection:
        connection.execute("CREATE TABLE kept AS SELECT 'Äpfel' AS word")
    with running_stores(folder) as second, psycopg.connect(second.environment["DATABASE_URL"]) as connection:
        row = connection.execute("SELECT word, lower(word), current_setting('fsync') FROM kept").fetchone()
    assert (first.environment, row) == (second.environment, ("Äpfel", "äpfel", "on"))


def test_killed_postgresql_restarts_after_its_last_process_has_ended(tmp_path: Path) -> None:
    postgres = Postgres(tmp_path / "postgres", any_free(), "password", durable=False)
    with supervised(StackFolder(tmp_path)) as supervisor:
        supervisor.start(postgres.service())
        child = supervisor["postgres"]
        with psycopg.connect(postgres.url) as connection:
            late = connection.info.backend_pid
            os.kill(late, signal.SIGSTOP)
            child.stop(signal.SIGKILL)
            threading.Timer(1.0, os.kill, (late, signal.SIGCONT)).start()
            child.start()
            child.wait_until_ready()
        with psycopg.connect(postgres.url) as connection:
            assert connection.execute("SELECT 1").fetchone() == (1,)


@pytest.mark.behaviour("11.3", "11.5")
def test_postgresql_that_recovers_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("broker_project.stack.supervisor.READY_SECONDS", 2.0)
    monkeypatch.setattr("broker_project.stack.supervisor.START_HEARTBEAT_SECONDS", 1.0)
    postgres, said = Postgres(tmp_path / "postgres", any_free(), "password", durable=False), list[str]()
    is_enough = postgres.folder / "is enough"
    wait = f"until test -e '{is_enough}'; do sleep 0.05; done; false"
    words = (*postgres.service().command, "-c", "wal_level=replica", "-c", f"restore_command={wait}")

    def say(text: str) -> None:
        said.append(text)
        if len(said) == 2:  # after 3 s
            is_enough.touch()

    with supervised(StackFolder(tmp_path), say) as supervisor:
        supervisor.start(replace(postgres.service(), command=words))
        supervisor["postgres"].stop()
        (postgres.data / "recovery.signal").touch()
        said.clear()
        supervisor.start(replace(postgres.service(), command=words))
    assert said == [said[0], "... still waiting for postgres (recovering its data) after 3 s"]


def test_a_killed_initdb_deletes_nothing_of_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    postgres, folders = Postgres(tmp_path / "postgres", any_free(), "password", durable=False), list[str]()
    (postgres.folder / "new-0").mkdir(parents=True)
    real = postgres_module.run

    def run(program: str, *arguments: str | Path, stdin: str = "") -> None:
        folders.append(str(arguments[1 + (program == "postgres")]))
        real(program, *arguments, stdin=stdin)

    monkeypatch.setattr(postgres_module, "run", run)
    postgres.prepare()
    assert {*folders} == {str(postgres.folder / f"new-{os.getpid()}")}
    assert [path.name for path in postgres.folder.iterdir()] == ["data"]


def test_servers_require_a_password(tmp_path: Path) -> None:
    with running_stores(tmp_path, durable=False) as stores:
        with pytest.raises(psycopg.OperationalError, match="password"):
            psycopg.connect(stores.environment["DATABASE_URL"].replace("broker:", "broker:not"))
        client = redis.Redis.from_url(stores.environment["REDIS_URL"].replace("://:", "://:not"))
        with client, pytest.raises(redis.AuthenticationError):
            client.ping()


def test_a_redis_cluster_is_refused(tmp_path: Path) -> None:
    server = RedisServer(tmp_path, any_free(), "password")
    binary, configuration = server.service().command
    server.prepare()
    with supervised(StackFolder(tmp_path)) as supervisor:
        supervisor.start(replace(server.service(), command=[binary, configuration, "--cluster-enabled", "yes"]))
        with pytest.raises(SystemExit, match="Redis Cluster"):
            check_redis_at_start(server.url)


def test_lost_password_is_reported_at_once(tmp_path: Path) -> None:
    with running_stores(tmp_path, durable=False):
        pass
    (tmp_path / "stack.json").unlink()
    with pytest.raises(StackError, match="restore that file"), running_stores(tmp_path, durable=False):
        pass


def test_second_stack_in_a_folder_is_refused(tmp_path: Path) -> None:
    with running_stores(tmp_path, durable=False), pytest.raises(AlreadyRunning), running_stores(tmp_path):
        pass


def test_external_servers_are_used_instead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATABASE_URL", "postgres://own")
    monkeypatch.setenv("REDIS_URL", "redis://own")
    with running_stores(tmp_path) as stores:
        assert stores.environment == {}


@pytest.mark.parametrize(
    "left",
    ["", f"{os.getpid()}\n", f"{os.getpid()}\n/elsewhere\n1\n2\n\n127.0.0.1\n  77  999999999\nready\n"],
    ids=["nothing written yet", "the id of another program", "memory that nobody has"],
)
def test_stale_pid_file_is_deleted(tmp_path: Path, left: str) -> None:
    (tmp_path / "postmaster.pid").write_text(left)
    end_predecessor(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_missing_pid_file_is_ignored(tmp_path: Path) -> None:
    end_predecessor(tmp_path)
    assert list(tmp_path.iterdir()) == []
