"""Celery tasks about logins and the history; repeating one does no harm."""

from celery import shared_task
from django.core.management import call_command

from broker_project.accounts import login_throttle
from broker_project.core.api.history import forget_old_changes


@shared_task(name="accounts.forget")
def forget() -> None:
    """Delete failed logins that no longer count, expired sessions, and old changes over the API."""
    login_throttle.delete_old_tries()
    forget_old_changes()
    call_command("clearsessions")
