"""Celery tasks about logins: one call each; whatever comes twice does no harm."""

from celery import shared_task
from django.core.management import call_command

from broker_project.accounts import login_throttle


@shared_task(name="accounts.forget")
def forget() -> None:
    """Forget failed logins that count no more, and sessions that have ended."""
    login_throttle.forget()
    call_command("clearsessions")
