"""`manage.py reset_second_factor`: remove a second factor when no superuser can."""

from typing import Any

from django.contrib.auth.models import User
from django.core.management.base import BaseCommand, CommandError, CommandParser

from broker_project.accounts import mfa


class Command(BaseCommand):
    """For somebody who has lost the phone and the recovery codes."""

    help = "Removes a person's second factor: from then on the password alone lets them in."

    def add_arguments(self, parser: CommandParser) -> None:
        """Take the name of the login."""
        parser.add_argument("name", help="the name they log in with")

    def handle(self, *_: Any, name: str, **__: Any) -> None:
        """Remove it; the history records it under the person's own name, for it knows no other."""
        person = User.objects.filter(username=name).first()
        if person is None:
            raise CommandError(f"There is nobody with the name {name!r}.")
        was_there = mfa.remove(person)
        if was_there:
            mfa.write_history(person, "Reset the second factor at the host.", by=person.pk)
        self.stdout.write(f"{name} {'no longer has a second factor' if was_there else 'had no second factor'}.")
