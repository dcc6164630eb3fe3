"""What becomes of a person's login, in the admin's history and the log: what was done and by whom, never a secret."""

from typing import cast

import structlog
from django.contrib.admin.models import CHANGE, LogEntry
from django.contrib.auth.models import User
from django.http import HttpRequest

log = structlog.get_logger(__name__)


def note(request: HttpRequest, person: User, text: str) -> None:
    """Write down that whoever asks has done something about a person's login."""
    _note(person, text, by=cast("User", request.user).pk)


def note_at_the_host(person: User, text: str) -> None:
    """Write down what was done by whoever may run `manage.py`, in the person's own name: the history knows no other."""
    _note(person, text, by=person.pk)


def _note(person: User, text: str, *, by: int) -> None:
    people = User.objects.filter(pk=person.pk)
    LogEntry.objects.log_actions(by, people, CHANGE, change_message=text, single_object=True)
    log.info("accounts.changed", person=person.pk, by=by, what=text)
