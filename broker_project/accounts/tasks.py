"""Celery tasks about logins; repeating one does no harm."""

from axes.models import AccessAttempt
from celery import shared_task
from django.core.management import call_command
from django.utils import timezone

from broker_project.accounts.login_throttle import PAUSE


@shared_task(name="accounts.forget")
def forget() -> None:
    """Delete failed logins that no longer count, and expired sessions."""
    AccessAttempt.objects.filter(attempt_time__lt=timezone.now() - PAUSE).delete()
    call_command("clearsessions")
