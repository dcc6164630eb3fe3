"""The Celery application."""

import os
import sys
from pathlib import Path
from typing import Any, Final

from celery import Celery
from celery.concurrency.thread import TaskPool
from celery.signals import worker_init, worker_ready
from django.conf import settings

from broker_project.core.database_server import check_server_at_start
from broker_project.environment import read_settings
from broker_project.redis_transport import check_redis_at_start, use_transport
from broker_project.server.runtime import collect_garbage_less_often, tune_runtime
from delivery.maintenance import incarnation

OTHER_POOL: Final = (
    "broker: a worker needs a pool of threads, as the settings have it: leave -P out, and say how many with -c."
)

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "broker_project.settings")
os.environ.setdefault("FLOWER_CONF", str(Path(__file__).with_name("read_only_flower.py")))
read_settings()
use_transport()


def celery_settings() -> dict[str, Any]:
    """Return only the Celery part of the settings, because workers report their whole configuration to Flower."""
    names = (name for name in dir(settings) if name.startswith("CELERY_"))
    return {name.removeprefix("CELERY_").lower(): getattr(settings, name) for name in names}


app = Celery("broker_project")
app.add_defaults(celery_settings)
app.autodiscover_tasks()


@worker_init.connect
def refuse_other_pools(sender: Any, **_signal: object) -> None:
    """End a worker with another pool: only threads share an event loop, connections and a clean stop.

    Celery takes `-P prefork`, which is its own default, for no choice.
    """
    asked = {argument.removeprefix("-P").removeprefix("--pool=") for argument in sys.argv}
    if "prefork" in asked or not issubclass(sender.pool_cls, TaskPool):
        sys.exit(OTHER_POOL)


@worker_init.connect
def guard_connections(**_signal: object) -> None:
    """Let the worker end where it cannot work with its database, and where that is another than before."""
    check_server_at_start()
    check_redis_at_start(settings.REDIS_URL)
    incarnation.guard_connections()


@worker_ready.connect
def tune_worker(**_signal: object) -> None:
    """Tune Python once everything is loaded."""
    tune_runtime()
    collect_garbage_less_often()
