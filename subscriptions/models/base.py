"""What the models share: versions, reserved ids, sealed headers."""

import json
from collections.abc import Collection, Iterable, Mapping
from typing import Any, ClassVar

from django import forms
from django.core.exceptions import ValidationError
from django.db import models
from django.db.models import Q
from django.db.models.functions import Now

from broker_project.core.db import rows
from broker_project.core.encryption import DecryptionFailed, EncryptedValue
from subscriptions.headers import with_values_kept


def field_error(names: Iterable[str], text: str) -> ValidationError:
    """Return the error that says the same of each of these fields."""
    return ValidationError({name: ValidationError(text, code=name) for name in names})


def checks(**conditions: Q) -> list[models.BaseConstraint]:
    """Return the database's checks, each named by its argument."""
    return [models.CheckConstraint(name=name, condition=condition) for name, condition in conditions.items()]


class EncryptedHeaders(EncryptedValue):
    """Header names and values, sealed together."""

    def to_plaintext(self, value: Mapping[str, str]) -> bytes:
        """Return the bytes that are sealed."""
        return json.dumps(value).encode()

    def from_plaintext(self, plain: bytes) -> dict[str, str]:
        """Return the headers that `to_plaintext` made these bytes of."""
        headers: dict[str, str] = json.loads(plain)
        return headers

    def formfield(self, **options: Any) -> Any:
        """Return a JSON field."""
        return super().formfield(**{"form_class": forms.JSONField, **options})

    def value_from_object(self, obj: models.Model) -> dict[str, None] | None:
        """Return a form's initial value: the names; None if they cannot be decrypted."""
        headers = _readable(obj, self.attname)
        return None if headers is None else dict.fromkeys(headers)

    def save_form_data(self, instance: models.Model, data: Mapping[str, str | None]) -> None:
        """Set the headers of a form, in which null keeps the present value."""
        setattr(instance, self.attname, with_values_kept(data, _readable(instance, self.attname) or {}))


def _readable(row: models.Model, name: str) -> Any:
    """Return a sealed field's value, None if it cannot be decrypted."""
    try:
        return getattr(row, name)
    except DecryptionFailed:
        return None


class ReservedId(models.BigAutoField):  # type: ignore[type-arg]  # no brackets at run time
    """An id that is drawn before its row is stored, so that the row's sealed values can be bound to it."""

    def get_pk_value_on_save(self, instance: models.Model) -> int:
        """Draw the next id."""
        column = [instance._meta.db_table, self.column]  # noqa: SLF001 - documented by Django
        ((drawn,),) = rows("SELECT nextval(pg_get_serial_sequence(%s, %s))", column)
        return int(drawn)


class Versioned(models.Model):
    """Base of all configuration; a trigger raises `version` at each change of the row.

    The version is the `ETag` of the API and tells a line that its subscription has changed (contract 4.9).
    """

    version = models.BigIntegerField(default=1, db_default=1, editable=False)
    created_at = models.DateTimeField(db_default=Now(), editable=False)
    updated_at = models.DateTimeField(db_default=Now(), editable=False)

    derived: ClassVar[tuple[str, ...]] = ()
    """Fields that follow from others: they are saved with every change."""
    compared: ClassVar[frozenset[str]] = frozenset()
    """Fields whose change calls `clean_among_others`."""

    class Meta:
        abstract = True

    @property
    def is_built_in(self) -> bool:
        """Whether it was installed with the broker: it cannot be changed or deleted."""
        return False

    def resolved(self, changes: Mapping[str, object]) -> Mapping[str, object]:
        """Return the changes, with those that refer to present values replaced by values."""
        return changes

    def remember(self, changing: Collection[str]) -> None:
        """Note how these fields were until now, if that is asked for later."""

    def change_along(self, changed: Collection[str]) -> Collection[str]:  # noqa: ARG002 - for subclasses
        """Change the fields that follow a change of these fields; return their names."""
        return ()

    def clean_among_others(self) -> None:
        """Raise `ValidationError` if another record stands in the way; in the transaction that saves this one."""


class WithHeaders(Versioned):
    """Base of models with sealed `headers`, and perhaps more sealed fields."""

    id = ReservedId("ID", primary_key=True, auto_created=True)  # as Django makes them: the first of the fields

    class Meta:
        abstract = True

    @property
    def readable_headers(self) -> Mapping[str, str]:
        """Its headers; empty if they cannot be decrypted."""
        return _readable(self, "headers") or {}

    @property
    def header_names(self) -> list[str] | None:
        """The names of its headers; None if they cannot be decrypted."""
        headers = _readable(self, "headers")
        return None if headers is None else list(headers)

    @property
    def unreadable(self) -> list[str]:
        """The names of fields whose key is gone: nothing is sent until they are set again."""
        sealed = [field.name for field in self._meta.get_fields() if isinstance(field, EncryptedValue)]
        return [name for name in sealed if _readable(self, name) is None]

    def resolved(self, changes: Mapping[str, object]) -> Mapping[str, object]:
        """Return the changes, null headers replaced by present values; raise `ValidationError` if one has none."""
        given = changes.get("headers")
        if not isinstance(given, dict) or None not in given.values():
            return changes
        try:
            return {**changes, "headers": with_values_kept(given, self.readable_headers)}
        except ValidationError as refused:
            raise ValidationError({"headers": refused}) from None
