"""The Django app of the project itself."""

from django.apps import AppConfig

from broker_project import checks  # noqa: F401 - registers the deployment checks
from broker_project.celery import app as celery_app


class BrokerProjectConfig(AppConfig):
    """Loads the Celery application with the apps, so that shared tasks belong to it."""

    name = "broker_project"
    celery_app = celery_app
