"""`manage.py rotate_keys`: encrypt everything under the current secret key, or count what is not."""

import sys
from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from broker_project.core.encryption import EncryptedColumn
from subscriptions.credentials.rotation import count_former, encrypted_columns, reencrypt


class Command(BaseCommand):
    """The step after a change of `BROKER_SECRET_KEY`."""

    help = (
        "Encrypts everything under the current BROKER_SECRET_KEY, so that fallbacks can be dropped. Can be interrupted "
        "and started again, while the broker runs. Exits with 1 if something still needs a former key."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        """Add `--check`."""
        parser.add_argument("--check", action="store_true", help="only count what still needs a former key")

    def handle(self, *_: Any, check: bool, **__: Any) -> None:
        """Work column by column."""
        left = sum([self._count(one) if check else self._reencrypt(one) for one in encrypted_columns()])
        if left:
            missing = "not the present one" if check else "not among BROKER_SECRET_KEY_FALLBACKS"
            self.stdout.write(f"{left} need a secret key that is {missing}.")
            sys.exit(1)
        self.stdout.write("Nothing needs a former secret key: fallbacks may be dropped.")

    def _count(self, column: EncryptedColumn) -> int:
        count = count_former(column)
        self.stdout.write(f"{column.purpose}: {count} under former keys")
        return count

    def _reencrypt(self, column: EncryptedColumn) -> int:
        """Encrypt a column's values again; return how many cannot be decrypted."""
        total, done, unreadable = count_former(column), 0, 0
        for result in reencrypt(column):
            done, unreadable = done + result.count, unreadable + len(result.unreadable)
            for row_id in result.unreadable:
                named = f"{column.model._meta.verbose_name} {row_id}"  # noqa: SLF001 - documented by Django
                self.stderr.write(f"{column.purpose} of {named} cannot be decrypted: set it again.")
            self.stdout.write(f"{column.purpose}: {done} of {total}")
        if not total:
            self.stdout.write(f"{column.purpose}: nothing to do")
        return unreadable
