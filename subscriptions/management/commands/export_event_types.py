"""`manage.py export_event_types`: write all event types to a file that can be imported."""

from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from subscriptions.import_export import FileFormat, export_event_types
from subscriptions.models import EventType


class Command(BaseCommand):
    """Event types, to a file."""

    help = "Writes all event types, with schemas and samples, to a file, or to the standard output."

    def add_arguments(self, parser: CommandParser) -> None:
        """Add the file and its format."""
        parser.add_argument("file", metavar="FILE", nargs="?", help="the file; without one it is printed")
        parser.add_argument("--format", choices=[*FileFormat], help="without it: JSON if the file ends so, else YAML")

    def handle(self, *_: Any, **options: Any) -> str | None:
        """Write the file, or return its text, which is printed."""
        file = options["file"]
        by_name = FileFormat.JSON if file and file.lower().endswith(".json") else FileFormat.YAML
        text = export_event_types(EventType.objects.configured(), FileFormat(options["format"] or by_name))
        if not file:
            return text
        try:
            Path(file).write_text(text, encoding="utf-8")
        except OSError as broken:
            raise CommandError(f"{file} cannot be written: {broken.strerror}.") from None
        return None
