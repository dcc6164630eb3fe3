"""`manage.py statement settle`: print a statement of a round, whole, as `psql` runs it."""

import re
from argparse import ArgumentParser
from typing import Any, Final

from django.core.management.base import BaseCommand

from delivery.worker import page_sql, queue, queue_settle, settle_sql

STATEMENTS: Final = {
    "settle": settle_sql.SETTLE,
    "settle_groups": queue_settle.SETTLE_GROUPS,
    "pages": page_sql.PAGES,
    "group_pages": queue.PAGES,
}
EMPTY: Final = {"json": "[]", "": "0"}
"""What says nothing, for a parameter of this type; of another: an empty array."""
PARAMETER: Final = re.compile(r"%\((\w+)\)s(?:::(\w+(?:\[\])?))?")


class Command(BaseCommand):
    """Print one statement, with parameters that name nothing, so that it can be run as it is and changed."""

    help = "Print a statement of a worker's round for psql: read it from top to bottom, or run it."

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Declare the statement."""
        parser.add_argument("name", choices=[*STATEMENTS])

    def handle(self, *_arguments: Any, **options: Any) -> None:
        """Print it."""
        statement = STATEMENTS[options["name"]]
        for name, type_name in dict(PARAMETER.findall(statement)[::-1]).items():
            self.stdout.write(f"\\set {name} '{EMPTY.get(type_name, '{}')}'")
        text = PARAMETER.sub(lambda found: f":'{found[1]}'" + (f"::{found[2]}" if found[2] else ""), statement)
        self.stdout.write(f"{text.strip()};")
