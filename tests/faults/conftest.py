"""What every case has: load, its figures, and a line with the verdict."""

from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from broker_project.stack.load.receiver import Receiver
from tests.support.brokers import Brokers, replace_broken_broker
from tests.support.faults.audit import Made
from tests.support.faults.figures import Figures, Report, promised_pause
from tests.support.faults.load import Load, loaded
from tests.support.faults.mailbox_load import MailboxLoad, mailbox_loaded
from tests.support.faults.queue_load import QueueLoad, queue_loaded
from tests.support.faults.verdicts import AUDITS, BEGUN, FAILED, VERDICT, Verdict, name_of, stolen_since, ticks
from tests.support.real_broker import Broker


@pytest.fixture
def broker(brokers: Brokers) -> Broker:
    """The broker that runs, which may be another from case to case."""
    return brokers.broker()


@pytest.fixture(autouse=True)
def _apart(brokers: Brokers, request: pytest.FixtureRequest) -> None:
    """Begin with another broker where a case before has failed: it may have left anything behind."""
    replace_broken_broker(brokers, request.session)


@pytest.fixture(autouse=True)
def _audited(_apart: None, broker: Broker, brokers: Brokers, request: pytest.FixtureRequest) -> Iterator[None]:
    """Owe an audit of what the case has left, if there is one in the end."""
    history = brokers.history()
    before = history.since.newest()
    yield
    if request.config.stash.get(AUDITS, False):
        history.owed.append((request.node.stash[VERDICT], Made(before, history.since.newest())))


@pytest.fixture
def load(broker: Broker, receiver: Receiver, request: pytest.FixtureRequest) -> Iterator[Load]:
    """Three subscribers, one of which answers 500 now and then."""
    with loaded(broker, receiver) as load:
        load.subscribe("steady-1")
        load.subscribe("steady-2")
        load.subscribe("failing", fails=lambda number: number % 20 == 0)
        yield load
        request.node.stash[VERDICT].figures += load.figures()


@pytest.fixture
def figures(load: Load, request: pytest.FixtureRequest) -> Iterator[Report]:
    """Wait until everything is through; return the figures. Their pause may be as long as promised."""

    def after_all() -> Figures:
        load.stop()
        return load.figures()

    yield after_all
    if promise := request.node.get_closest_marker("pause"):
        longest, pause = promised_pause(promise.args[0]) + promise.kwargs.get("after", 0.0), load.figures().pause
        assert pause <= longest, f"a pause of {pause} s, and at most {longest:g} s are promised"


@pytest.fixture
def jobs(broker: Broker, receiver: Receiver, request: pytest.FixtureRequest) -> Iterator[QueueLoad]:
    """A QUEUE of three endpoints, one of which is down."""
    with queue_loaded(broker, receiver) as jobs:
        yield jobs
        request.node.stash[VERDICT].figures += jobs.figures()


@pytest.fixture
def box(broker: Broker, receiver: Receiver, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[MailboxLoad]:
    """A mailbox without clients."""
    with mailbox_loaded(broker, receiver, tmp_path) as box:
        yield box
        request.node.stash[VERDICT].figures += box.figures()


@pytest.fixture
def verdict(load: Load, request: pytest.FixtureRequest) -> Verdict:
    """What is said of this case; what lies outside the load is added to its figures."""
    made: Verdict = request.node.stash[VERDICT]
    return made


def pytest_itemcollected(item: pytest.Item) -> None:
    """Take every test of this folder for a case."""
    item.add_marker("faults")
    item.add_marker("case")
    item.stash[VERDICT] = Verdict(name_of(item))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Note what the machine has done so far."""
    item.stash[BEGUN] = ticks()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Print the verdict at the end of a case."""
    report = yield
    verdict = item.stash[VERDICT]
    if report.when == "call":  # what is before and after may be another broker's start, or the audit of many cases
        verdict.seconds = round(verdict.seconds + report.duration, 1)
        verdict.measured |= stolen_since(item.stash[BEGUN])
    if call.excinfo:
        verdict.fail(report.when or "", call.excinfo.exconly())
        item.session.stash[FAILED] = True
    if report.when == "teardown":
        print(f"\n{verdict}", end="", flush=True)
    return report
