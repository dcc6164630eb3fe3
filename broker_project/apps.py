"""The Django app of the project itself."""

from django.apps import AppConfig, apps
from django.db.models.signals import post_migrate

from broker_project import checks  # noqa: F401 - registers the deployment checks
from broker_project.celery import app as celery_app


class BrokerProjectConfig(AppConfig):
    """Loads the Celery application with the apps, so that shared tasks belong to it."""

    name = "broker_project"
    celery_app = celery_app

    def ready(self) -> None:
        """Install roles after a migration, once the last app with models has its permissions."""
        # Not at the top: its models can be imported only now.
        from broker_project.accounts.roles import install_roles  # noqa: PLC0415

        post_migrate.connect(install_roles, sender=apps.get_app_config("django_celery_beat"))
