"""A standalone Spark cluster on this machine, made of nothing but the package: a master and workers as processes."""

import os
import re
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pyspark

from tests.receiver import wait_until
from tests.spark.processes import QUICK_START

SPARK: Final = Path(pyspark.__file__).parent
MASTER: Final = "org.apache.spark.deploy.master.Master"
WORKER: Final = "org.apache.spark.deploy.worker.Worker"
ANY_PORT: Final = ("--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
ADDRESS: Final = re.compile(r"Starting Spark master at (spark://\S+)")
REGISTERED: Final = re.compile(r"Successfully registered with master")
SAVED: Final = re.compile(r"Saved output of task .*/(\w+/\w+)/dt=")


@dataclass(frozen=True, slots=True)
class Cluster:
    """What runs."""

    address: str
    workers: tuple[Path, ...]
    """The folder of each."""
    settings: Path
    """What SPARK_CONF_DIR must be for an application to wait for all workers before it begins."""

    def tables_written(self, worker: Path) -> set[str]:
        """Return what the executors of one worker have written of the lake, as they say themselves."""
        logs = "\n".join(log.read_text() for log in worker.rglob("stderr"))
        return set(SAVED.findall(logs))


@contextmanager
def running_cluster(folder: Path, java_home: str, workers: int = 2) -> Iterator[Cluster]:
    """Start a cluster in a folder, where nothing of the project is; end it afterwards."""
    environment = {"PATH": os.environ["PATH"], "JAVA_HOME": java_home, "SPARK_LOCAL_IP": "127.0.0.1", **QUICK_START}
    folders = tuple(folder / f"worker-{number}" for number in range(workers))
    with ExitStack() as stack:
        log = stack.enter_context(_running(folder / "master", environment, MASTER, *ANY_PORT))
        address = _said(log, ADDRESS)
        for place in folders:
            size = ("--cores", "1", "--memory", "1g", "--work-dir", str(place))
            log = stack.enter_context(_running(place, environment, WORKER, *ANY_PORT, *size, address))
            _said(log, REGISTERED)
        yield Cluster(address, folders, _settings(folder / "conf", cores=workers))


def _settings(folder: Path, cores: int) -> Path:
    folder.mkdir()
    (folder / "spark-defaults.conf").write_text(
        f"spark.cores.max {cores}\n"
        "spark.scheduler.minRegisteredResourcesRatio 1.0\n"
        "spark.scheduler.maxRegisteredResourcesWaitingTime 600s\n"
    )
    return folder


def _said(log: Path, words: re.Pattern[str]) -> str:
    """Wait until a log has some words; return the last of them."""
    wait_until(lambda: words.search(log.read_text()), saying=log.read_text)
    (*_, found) = words.findall(log.read_text())
    return str(found)


@contextmanager
def _running(folder: Path, environment: Mapping[str, str], *command: str) -> Iterator[Path]:
    """Run a class of Spark; give its log."""
    folder.mkdir(parents=True)
    log = folder / "log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            (str(SPARK / "bin" / "spark-class"), *command),
            cwd=folder,
            env={**environment, "SPARK_HOME": str(SPARK), "TMPDIR": str(folder)},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        yield log
    finally:
        process.terminate()
        process.wait()
