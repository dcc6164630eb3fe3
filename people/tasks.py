"""Celery tasks about logins: one call each; whatever comes twice does no harm."""

from celery import shared_task
from django.core.management import call_command

from people import throttling


@shared_task(name="people.forget")
def forget() -> None:
    """Forget failed logins that count no more, and sessions that have ended."""
    throttling.forget()
    call_command("clearsessions")
