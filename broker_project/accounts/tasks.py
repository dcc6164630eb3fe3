"""Celery tasks about logins; repeating one does no harm."""

from celery import shared_task
from django.core.management import call_command

from broker_project.accounts import login_throttle


@shared_task(name="accounts.forget")
def forget() -> None:
    """Delete failed logins that no longer count, and expired sessions."""
    login_throttle.delete_old_tries()
    call_command("clearsessions")
