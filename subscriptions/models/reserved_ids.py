"""Ids that are known before their rows are stored."""

from django.db import connection, models


class ReservedId(models.BigAutoField):  # type: ignore[type-arg]  # no brackets at run time
    """An id that is known before its row is stored, so that what the row keeps sealed can be bound to it."""

    def get_pk_value_on_save(self, instance: models.Model) -> int:
        """Take the next id."""
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT nextval(pg_get_serial_sequence(%s, %s))",
                [instance._meta.db_table, self.column],  # noqa: SLF001
            )
            (taken,) = cursor.fetchone()
        return int(taken)
