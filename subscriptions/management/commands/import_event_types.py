"""`manage.py import_event_types`: create and change event types as a file says, all or none."""

import sys
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from subscriptions.import_export import Imported, RefusedEntries, UnreadableFile, import_event_types


class Command(BaseCommand):
    """Event types from a file."""

    help = "Creates and changes event types as a JSON file says: all of it, or nothing if anything is wrong."

    def add_arguments(self, parser: CommandParser) -> None:
        """Add the file and `--dry-run`."""
        parser.add_argument("file", metavar="FILE", help="the file; - reads the standard input")
        parser.add_argument("--dry-run", action="store_true", help="print what would be done, and do nothing")

    def handle(self, *_: Any, file: str, dry_run: bool, **__: Any) -> str:
        """Import the file; return a line for each of its event types."""
        try:
            content = sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
            imported = import_event_types(content, dry_run=dry_run)
        except OSError as broken:
            raise CommandError(f"{file} cannot be read: {broken.strerror}.") from None
        except RefusedEntries as refused:
            lines = [f"  {problem.pointer}: {problem.message}" for problem in refused.problems]
            raise CommandError("\n".join(["Nothing was imported.", *lines])) from None
        except UnreadableFile as broken:
            raise CommandError(str(broken)) from None
        lines = [_line(one) for one in imported] or ["The file has no event types."]
        return "\n".join([*lines, *(["Nothing was changed: this was a dry run."] if dry_run else [])])


def _line(one: Imported) -> str:
    changed = f" ({', '.join(one.changed)})" if one.changed else ""
    return f"{one.verdict:<9} {one.event_type}{changed}"
