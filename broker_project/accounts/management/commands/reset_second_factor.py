"""`manage.py reset_second_factor`: let somebody in by the password alone, where no superuser is left who could."""

from typing import Any

from django.contrib.auth.models import User
from django.core.management.base import BaseCommand, CommandError, CommandParser

from broker_project.accounts import mfa
from broker_project.accounts.audit_log import note_at_the_host


class Command(BaseCommand):
    """For who has lost the telephone and the recovery codes."""

    help = "Takes somebody's second factor away: from then on the password alone lets them in."

    def add_arguments(self, parser: CommandParser) -> None:
        """Take whose."""
        parser.add_argument("name", help="the name they log in with")

    def handle(self, *_: Any, name: str, **__: Any) -> None:
        """Do it."""
        person = User.objects.filter(username=name).first()
        if person is None:
            raise CommandError(f"There is nobody with the name {name!r}.")
        done = mfa.remove(person)
        if done:
            note_at_the_host(person, "Reset the second factor at the host.")
        self.stdout.write(f"{name} {'has no second factor any more' if done else 'had no second factor'}.")
