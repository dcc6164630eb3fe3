"""The Celery application."""

import os
from typing import Any, Final

from celery import Celery
from celery.signals import worker_ready
from django.conf import settings

from broker_project.server.runtime import collect_garbage_less_often, tune_runtime

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "broker_project.settings")

PREFIX: Final = "CELERY_"


def celery_settings() -> dict[str, Any]:
    """Return Celery's part of the settings, and no more: workers tell Flower all that they were configured with."""
    return {
        name.removeprefix(PREFIX).lower(): getattr(settings, name) for name in dir(settings) if name.startswith(PREFIX)
    }


app = Celery("broker_project")
app.add_defaults(celery_settings)
app.autodiscover_tasks()


@worker_ready.connect
def have_loaded_everything(**_signal: object) -> None:
    """Begin the long-running part of a worker's life."""
    tune_runtime()
    collect_garbage_less_often()
