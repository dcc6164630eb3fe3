"""The Django app of the project itself."""

from django.apps import AppConfig
from django.core.checks import Tags, register

from broker_project.celery import app as celery_app
from broker_project.checks import CHECKS


class BrokerProjectConfig(AppConfig):
    """Registers the Celery application and the deployment checks."""

    name = "broker_project"
    celery_app = celery_app
    """Loaded with the apps, so that shared tasks belong to it."""

    def ready(self) -> None:
        """Register the deployment checks."""
        for check in CHECKS:
            register(check, Tags.security, deploy=True)
