"""Emptying the database after a test that has committed: for a fraction of what Django's `flush` takes.

That truncates every table, which creates and removes hundreds of files, and makes all content types anew. Here rows
are deleted of those few tables that have any. Only where one has grown large is all truncated: the next tests would
read past what was deleted.
"""

from datetime import UTC, datetime
from typing import Final

from django.apps import apps
from django.core.management import call_command
from django.db import connection

from delivery.maintenance import partitions
from subscriptions.presets import install

KEPT: Final = ["django_migrations", "django_content_type", "auth_permission"]
"""What migrating has made, and no test changes."""
LARGE: Final = 1024 * 1024
"""Bytes of a table, or of one of its partitions."""

LARGEST: Final = """
SELECT max(pg_relation_size(oid)) FROM pg_class WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace
"""
EMPTY: Final = """
DO $$
DECLARE one text;
BEGIN
  SET LOCAL session_replication_role = replica;  -- neither triggers nor foreign keys
  FOR one IN SELECT oid::regclass FROM pg_class WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace
                AND relname <> ALL (%s) AND pg_relation_size(oid) > 0
  LOOP
    EXECUTE 'DELETE FROM ' || one;
  END LOOP;
END $$
"""


def emptied(_case: object = None) -> None:
    """Leave the database as migrating has left it, but for the numbers that are given out next."""
    with connection.cursor() as cursor:
        cursor.execute(LARGEST)
        if cursor.fetchone()[0] > LARGE:
            call_command("flush", verbosity=0, interactive=False, reset_sequences=False)
            return
        cursor.execute(EMPTY, [KEPT])
    prepared()


def prepared(**_: object) -> None:
    """Open the storage days, and install what is there before anybody has configured anything."""
    partitions.open_days(datetime.now(UTC).date(), ahead=1)
    install(apps)
