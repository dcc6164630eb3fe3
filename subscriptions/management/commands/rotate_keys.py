"""`manage.py rotate_keys`: seal everything under the present secret key, or count what is not."""

import sys
from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from broker_project.core.encryption import EncryptedColumn
from subscriptions.credentials.secret_key_rotation import count_former, reseal, sealed_columns


class Command(BaseCommand):
    """What follows a change of `BROKER_SECRET_KEY`."""

    help = (
        "Seals everything under the present BROKER_SECRET_KEY, so that fallbacks may be dropped. May be interrupted "
        "and started again, while the broker runs. Exits with 1 if something still needs a former key."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        """Take whether only to count."""
        parser.add_argument("--check", action="store_true", help="only count what still needs a former key")

    def handle(self, *_: Any, check: bool, **__: Any) -> None:
        """Do it, column by column."""
        left = sum([self._count(one) if check else self._reseal(one) for one in sealed_columns()])
        if left:
            missing = "not the present one" if check else "not among BROKER_SECRET_KEY_FALLBACKS"
            self.stdout.write(f"{left} need a secret key that is {missing}.")
            sys.exit(1)
        self.stdout.write("Nothing needs a former secret key: fallbacks may be dropped.")

    def _count(self, column: EncryptedColumn) -> int:
        count = count_former(column)
        self.stdout.write(f"{column.purpose}: {count} under former keys")
        return count

    def _reseal(self, column: EncryptedColumn) -> int:
        """Seal a column's values; return how many cannot be opened."""
        total, sealed, unreadable = count_former(column), 0, 0
        for came in reseal(column):
            sealed, unreadable = sealed + came.sealed, unreadable + len(came.unreadable)
            for row_id in came.unreadable:
                named = f"{column.model._meta.verbose_name} {row_id}"  # noqa: SLF001 - documented by Django
                self.stderr.write(f"{column.purpose} of {named} cannot be opened: set it anew.")
            self.stdout.write(f"{column.purpose}: {sealed} of {total}")
        if not total:
            self.stdout.write(f"{column.purpose}: nothing to do")
        return unreadable
