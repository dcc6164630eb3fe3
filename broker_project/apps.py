"""Django's handle on the wiring."""

from django.apps import AppConfig
from django.core.checks import Tags, register

from broker_project.celery import app as celery_app
from broker_project.checks import CHECKS


class BrokerProjectConfig(AppConfig):
    """Settings, addresses, and what is asked of them before deployment."""

    name = "broker_project"
    celery_app = celery_app
    """Loaded with the apps, so that shared tasks belong to it."""

    def ready(self) -> None:
        """Have the settings looked at before deployment."""
        for check in CHECKS:
            register(check, Tags.security, deploy=True)
