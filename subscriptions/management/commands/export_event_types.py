"""`manage.py export_event_types`: write all event types to a file that can be imported."""

from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from subscriptions.import_export import export_event_types
from subscriptions.models import EventType


class Command(BaseCommand):
    """Event types, to a file."""

    help = "Writes all event types, with schemas and samples, to a JSON file, or to the standard output."

    def add_arguments(self, parser: CommandParser) -> None:
        """Add the file."""
        parser.add_argument("file", metavar="FILE", nargs="?", help="the file; without one it is printed")

    def handle(self, *_: Any, file: str | None, **__: Any) -> str | None:
        """Write the file, or return its text, which is printed."""
        text = export_event_types(EventType.objects.all())
        if not file:
            return text
        try:
            Path(file).write_text(text, encoding="utf-8")
        except OSError as broken:
            raise CommandError(f"{file} cannot be written: {broken.strerror}.") from None
        return None
