"""`manage.py believe_clock`: end the wait after the database's clock has jumped ahead."""

from typing import Any

from django.core.management.base import BaseCommand

from delivery.believed_clock import believe


class Command(BaseCommand):
    """Confirm that the clock is right."""

    help = "Believe the database's clock now, although it has jumped ahead: what is past its time is deleted again."

    def handle(self, *_arguments: Any, **_options: Any) -> None:
        """Believe it, and print what it says."""
        self.stdout.write(f"believed: it is {believe():%Y-%m-%d %H:%M:%S} UTC")
