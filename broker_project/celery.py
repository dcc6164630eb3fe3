"""The Celery application."""

import os
from typing import Any

from celery import Celery
from celery.signals import worker_ready
from django.conf import settings

from broker_project.server.runtime import collect_garbage_less_often, tune_runtime

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "broker_project.settings")


def celery_settings() -> dict[str, Any]:
    """Return only the Celery part of the settings, because workers report their whole configuration to Flower."""
    names = (name for name in dir(settings) if name.startswith("CELERY_"))
    return {name.removeprefix("CELERY_").lower(): getattr(settings, name) for name in names}


app = Celery("broker_project")
app.add_defaults(celery_settings)
app.autodiscover_tasks()


@worker_ready.connect
def tune_worker(**_signal: object) -> None:
    """Tune Python once everything is loaded."""
    tune_runtime()
    collect_garbage_less_often()
