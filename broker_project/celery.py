"""The Celery application."""

import os

from celery import Celery
from celery.signals import worker_ready

from broker_project.processes import look_for_garbage_less_often, settle_in

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "broker_project.settings")

app = Celery("broker_project")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()


@worker_ready.connect
def have_loaded_everything(**_signal: object) -> None:
    """Begin the long-running part of a worker's life."""
    settle_in()
    look_for_garbage_less_often()
