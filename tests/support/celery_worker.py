"""A real Celery worker process on the test's own database and Redis."""

import contextlib
import os
import subprocess
from collections.abc import Iterable, Iterator

from django.conf import settings

from broker_project.stack.application import celery
from broker_project.stack.folders import ROOT
from broker_project.stack.load.wait import PATIENCE_SECONDS
from tests.support.database import database_url


@contextlib.contextmanager
def celery_worker(name: str, queues: Iterable[str]) -> "Iterator[subprocess.Popen[bytes]]":
    """Start a worker that consumes these queues, with the default pool; stop it at the end."""
    process = subprocess.Popen(
        [*celery("worker", "--without-mingle", "--without-gossip", "-n", name, "-Q", ",".join(queues))],
        env=os.environ | {"DATABASE_URL": database_url(), "REDIS_URL": settings.REDIS_URL, "BROKER_WORKER_NAME": name},
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield process
    finally:
        process.terminate()
        process.wait(PATIENCE_SECONDS)
