"""What configured things have in common: reserved ids, versions, secret headers."""

import json
from collections.abc import Collection, Mapping
from typing import Any, ClassVar

from django import forms
from django.core.exceptions import ValidationError
from django.db import connection, models
from django.db.models.functions import Now

from broker_project.core.encryption import DecryptionFailed, EncryptedField
from subscriptions.headers import with_values_kept


class EncryptedHeaders(EncryptedField):
    """Header names and values that are stored sealed, together: a name alone would say little and need a column."""

    def bytes_of(self, value: Mapping[str, str]) -> bytes:
        """Return the bytes that are sealed."""
        return json.dumps(value).encode()

    def value_of(self, plain: bytes) -> dict[str, str]:
        """Return what these bytes say."""
        headers: dict[str, str] = json.loads(plain)
        return headers

    def formfield(self, **options: Any) -> Any:
        """Return the field of a form."""
        return super().formfield(**{"form_class": forms.JSONField, **options})

    def value_from_object(self, obj: models.Model) -> dict[str, None] | None:
        """Return what a form begins with: the names; None where they cannot be read."""
        headers = _readable(obj, self.attname)
        return None if headers is None else dict.fromkeys(headers)

    def save_form_data(self, instance: models.Model, data: Mapping[str, str | None]) -> None:
        """Set what a form says, where null stands for the value that there is."""
        setattr(instance, self.attname, with_values_kept(data, _readable(instance, self.attname) or {}))


def _readable(row: models.Model, name: str) -> dict[str, str] | None:
    try:
        headers: dict[str, str] = getattr(row, name)
    except DecryptionFailed:
        return None
    return headers


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


class Versioned(models.Model):
    """Base of what people configure; a trigger raises `version`, whoever changes the row and however.

    The version is the `ETag` of the API and tells a line that its subscription has changed (contract 4.9).
    """

    version = models.BigIntegerField(default=1, db_default=1, editable=False)
    created_at = models.DateTimeField(db_default=Now(), editable=False)
    updated_at = models.DateTimeField(db_default=Now(), editable=False)

    derived: ClassVar[tuple[str, ...]] = ()
    """Fields that follow from others: they are saved with every change."""
    compared: ClassVar[frozenset[str]] = frozenset()
    """Fields whose change another record may stand in the way of."""

    class Meta:
        abstract = True

    @property
    def came_installed(self) -> bool:
        """Whether it came with the broker: nobody changes or deletes it."""
        return False

    def resolved(self, changes: Mapping[str, object]) -> Mapping[str, object]:
        """Return the changes, those that refer to what it is now made out by that."""
        return changes

    def change_along(self, changed: Collection[str]) -> Collection[str]:  # noqa: ARG002 - for subclasses
        """Change what goes with these changes; return the fields of that."""
        return ()

    def clean_among_others(self) -> None:
        """Raise `ValidationError` where another record stands in the way; in the transaction that saves this one."""


class Headed(Versioned):
    """Base of what has a field `headers`, and perhaps more that is kept sealed."""

    id = ReservedId("ID", primary_key=True, auto_created=True)  # as Django makes them: the first of the fields

    class Meta:
        abstract = True

    @property
    def readable_headers(self) -> Mapping[str, str]:
        """Its headers; none where they cannot be read."""
        return self.headers if self._can_open("headers") else {}  # type: ignore[attr-defined]

    @property
    def header_names(self) -> list[str] | None:
        """The names of its headers; None where they cannot be read."""
        return list(self.readable_headers) if self._can_open("headers") else None

    @property
    def unreadable(self) -> list[str]:
        """The names of what cannot be opened any more, since its key is gone: nothing is sent until it is set anew."""
        sealed = [field.name for field in self._meta.get_fields() if isinstance(field, EncryptedField)]
        return [name for name in sealed if not self._can_open(name)]

    def resolved(self, changes: Mapping[str, object]) -> Mapping[str, object]:
        """Return the changes with the headers' values that they leave as they are.

        Raises:
            ValidationError: there is no such header, or its value cannot be read.

        """
        given = changes.get("headers")
        if not isinstance(given, dict) or None not in given.values():
            return changes
        try:
            return {**changes, "headers": with_values_kept(given, self.readable_headers)}
        except ValidationError as refused:
            raise ValidationError({"headers": refused}) from None

    def _can_open(self, name: str) -> bool:
        try:
            getattr(self, name)
        except DecryptionFailed:
            return False
        return True
