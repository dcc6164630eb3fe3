"""`manage.py import_event_types`: create and change event types as a file says, all or none."""

import sys
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from subscriptions.import_export import Imported, RefusedEntries, UnreadableFile, import_event_types


class Command(BaseCommand):
    """Event types from a file."""

    help = "Creates and changes event types as a JSON or YAML file says: all of it, or nothing if anything is wrong."

    def add_arguments(self, parser: CommandParser) -> None:
        """Take the file, and whether to only say what would be done."""
        parser.add_argument("file", metavar="FILE", help="the file; - reads the standard input")
        parser.add_argument("--dry-run", action="store_true", help="say what would be done, and do nothing")

    def handle(self, *_: Any, **options: Any) -> str:
        """Import the file; return a line for each of its event types."""
        try:
            imported = import_event_types(_content(options["file"]), dry_run=options["dry_run"])
        except RefusedEntries as refused:
            told = [f"  {problem.pointer}: {problem.message}" for problem in refused.problems]
            raise CommandError("\n".join(["Nothing was imported.", *told])) from None
        except UnreadableFile as broken:
            raise CommandError(str(broken)) from None
        told = [_line(one) for one in imported] or ["The file has no event types."]
        return "\n".join([*told, *(["Nothing was changed: this was a dry run."] if options["dry_run"] else [])])


def _content(file: str) -> bytes:
    try:
        return sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
    except OSError as broken:
        raise CommandError(f"{file} cannot be read: {broken.strerror}.") from None


def _line(one: Imported) -> str:
    changed = f" ({', '.join(one.changed)})" if one.changed else ""
    return f"{one.verdict:<9} {one.event_type}{changed}"
