"""A real Celery worker process on the test's own database and Redis."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from django.conf import settings

from broker_project.stack.application import PROJECT
from broker_project.stack.folders import ROOT
from broker_project.stack.load.wait import PATIENCE_SECONDS
from tests.support.database import database_url


@contextlib.contextmanager
def celery_worker(
    name: str, queues: Iterable[str], *, before: str = "pass", log: Path = Path(os.devnull)
) -> "Iterator[subprocess.Popen[bytes]]":
    """Start a worker that consumes these queues, with the default pool; stop it at the end.

    It runs the Python code `before` first, and writes everything that it logs into `log`.
    """
    program = f"{before}\nfrom celery.__main__ import main\nmain()"
    arguments = ("-A", PROJECT, "worker", "--without-mingle", "--without-gossip", "-l", "DEBUG", "-n", name)
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-c", program, *arguments, "-Q", ",".join(queues)],
            env=os.environ
            | {"DATABASE_URL": database_url(), "REDIS_URL": settings.REDIS_URL, "BROKER_WORKER_NAME": name},
            cwd=ROOT,
            stdout=output,
            stderr=output,
        )
        try:
            yield process
        finally:
            process.terminate()
            process.wait(PATIENCE_SECONDS)
