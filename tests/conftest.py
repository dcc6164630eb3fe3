"""What tests share: an isolated Redis database, and a database that is emptied after each test that commits."""

import gc
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest
import structlog
from django.apps import apps
from django.conf import settings
from django.db.models.signals import post_migrate
from django.test import TransactionTestCase

from analytics import live_numbers
from broker_project.core.rate_limit import RateLimiter
from broker_project.stack.load.receiver import Receiver, running_receiver
from broker_project.stack.load.wait import PATIENCE_SECONDS
from delivery.dispatch import notify
from delivery.limits import MIN_IDLE_SECONDS
from delivery.publish import open_messages
from delivery.sync import caller
from delivery.worker import leases
from subscriptions.api import authentication
from subscriptions.credentials import tokens
from subscriptions.scripting import process, runner
from tests.support.broker import Worker, running_worker
from tests.support.brokers import Brokers
from tests.support.database import empty_database, prepare_database
from tests.support.real_broker import Broker

FRESH = "FRESH_SEEDS" in os.environ
"""Set by `./broker test --fresh-seeds`: random inputs are new in this run, and not the same in every run."""
hypothesis.settings.register_profile("default", deadline=None, database=None, derandomize=not FRESH, print_blob=FRESH)
hypothesis.settings.register_profile("long", deadline=None, print_blob=True, max_examples=10_000)
"""Chosen with `--hypothesis-profile long`: new random examples every time, and a hundred times as many."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Let real payloads be sent through a real broker, and summaries be compared with SQL over a long history."""
    parser.addoption("--payloads", type=Path, metavar="FILE", help='real payloads: {"event", "body"}, one a line')
    parser.addoption("--fuzz", type=int, default=5, metavar="N", help="made-up requests for each operation of the API")
    parser.addoption("--history", type=int, default=4_000, metavar="N", help="attempts that summaries are made of")


def pytest_configure(config: pytest.Config) -> None:
    """Give each process that runs tests a Redis database of its own, for they run side by side, and quick clients.

    If nothing is chosen, leave out what `./broker test` runs apart or not at all.
    """
    if config.args_source is pytest.Config.ArgsSource.TESTPATHS and not config.option.markexpr:
        config.option.markexpr = "not faults and not lengthy and not cluster"
    number = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) + 1
    structlog.configure(cache_logger_on_first_use=False)  # a cached logger is not seen by capture_logs()
    settings.WHITENOISE_AUTOREFRESH = True  # else every client of Django's begins by reading all static files
    settings.REDIS_URL = settings.CELERY_BROKER_URL = settings.REDIS_URL.rpartition("/")[0] + f"/{number}"


def pytest_collection_finish() -> None:
    """Look for garbage less often, and never again among what is there by now: a tenth of the time goes by that."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 10, 10)


@pytest.fixture(scope="session", autouse=True)
def _idle_lines_go_soon() -> Iterator[None]:
    """Let what waits until a line is released wait for a second and not for five."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(leases, "IDLE_SECONDS", MIN_IDLE_SECONDS)
        yield


@pytest.fixture(scope="session", autouse=True)
def _pages_read_everything_again() -> Iterator[None]:
    """Let no page show what another test left behind."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("CACHED_SECONDS", "MINUTE_SECONDS"):
            patch.setattr(live_numbers, name, 0)
        yield


@pytest.fixture(autouse=True)
def _unhurried_scripts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no script run into a limit of time, however busy the machine is; what CPU it may use stays as it is."""
    monkeypatch.setattr(process, "TOTAL_SECONDS", PATIENCE_SECONDS)
    monkeypatch.setattr(caller, "SPARE_SECONDS", PATIENCE_SECONDS)
    monkeypatch.setattr(runner, "MAX_WAITING_SECONDS", PATIENCE_SECONDS)


@pytest.fixture(autouse=True)
def _unknown_callers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hold nothing against anybody that other tests have done."""
    for name in ("_requests", "_failures"):
        monkeypatch.setattr(authentication, name, RateLimiter())
    tokens.recent_tokens._tokens.clear()
    open_messages._publishers.clear()


@pytest.fixture
def can_be_interrupted() -> Iterator[None]:
    """Heed interrupts, which a shell lets the programs ignore that it runs in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def unhurried_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a script without end run until the test ends it."""
    monkeypatch.setattr(process, "CPU_SECONDS", PATIENCE_SECONDS)
    for module in (process, runner):
        monkeypatch.setattr(module, "TRIAL_CPU_SECONDS", PATIENCE_SECONDS)


post_migrate.connect(prepare_database, sender=apps.get_app_config("delivery"))
TransactionTestCase._fixture_teardown = empty_database  # type: ignore[attr-defined] # it is private


@pytest.fixture
def storage(transactional_db: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget all hints, and that Redis was away."""
    notify.redis_client().flushdb()
    monkeypatch.setattr(notify, "breaker", notify._Breaker())


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with running_receiver() as running:
        yield running


@pytest.fixture
def calls(storage: None) -> Iterator[None]:
    """Stop in the end what SYNC calls have started."""
    yield
    for running in caller._callers.values():
        running.loop.stop()
    caller._callers.clear()


@pytest.fixture
def worker(storage: None) -> Iterator[Worker]:
    """A worker that drives all that is due."""
    with running_worker() as running:
        yield running


@pytest.fixture(scope="session")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Brokers]:
    """Whole brokers, with stores and processes of their own, one after the other."""
    made = Brokers(lambda: tmp_path_factory.mktemp("broker"))
    yield made
    made.forsake()


@pytest.fixture(scope="session")
def broker(brokers: Brokers) -> Broker:
    """The broker that runs for all tests; where a case has failed at it, only cases come after that."""
    return brokers.broker()
