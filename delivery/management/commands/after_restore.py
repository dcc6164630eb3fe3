"""`manage.py after_restore`: say that the database was restored, where the broker cannot notice it."""

from typing import Any

from django.core.management.base import BaseCommand

from delivery.maintenance.incarnation import begin_after_restore


class Command(BaseCommand):
    """Begin an incarnation of the database."""

    help = (
        "Run this after restoring the database's files or disk, or rows alone, to an earlier state, before the broker "
        "starts. Dumps restored into an empty database and promoted standbys are noticed without it."
    )

    def handle(self, *_arguments: Any, **_options: Any) -> None:
        """Begin it."""
        begin_after_restore()
        self.stdout.write("ids and numbers go on beyond all earlier ones; unfinished deliveries are sent with a flag")
