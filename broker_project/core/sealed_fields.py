"""Model fields that are stored encrypted: PostgreSQL, its dumps and its error texts show nothing of them."""

from collections.abc import Mapping
from typing import Any

from django.db import models
from django.db.models.query_utils import DeferredAttribute

from broker_project.core.keyring import Keyring, keyring, place_of


class SealedColumn(models.Field):  # type: ignore[type-arg]  # no brackets at run time
    """Bytes that the keyring for a `purpose` has sealed, each bound to what its row has in the column `bound_to`.

    `rotate_keys` finds every such column; from `needed_until` on, another column's time, it lets a value be.
    """

    empty_values = (None,)

    def __init__(self, *args: Any, purpose: str, bound_to: str = "id", needed_until: str = "", **options: Any) -> None:
        super().__init__(*args, **options)
        self.purpose, self.bound_to, self.needed_until = purpose, bound_to, needed_until

    def deconstruct(self) -> Any:
        """Return how migrations make it; the database knows nothing of what it is bound to."""
        name, path, args, options = super().deconstruct()
        return name, path, args, {**options, "purpose": self.purpose}

    def get_internal_type(self) -> str:
        """Return what it is to the database."""
        return "BinaryField"

    @property
    def keys(self) -> Keyring:
        """What its values are sealed with."""
        return keyring(self.purpose)


class _Opened(DeferredAttribute):
    """Opens what is stored at each access, so that it lies about opened no longer than somebody uses it."""

    field: "SealedField"

    def __get__(self, row: models.Model | None, owner: type[models.Model] | None = None) -> Any:
        if row is None:
            return self
        value = super().__get__(row, owner)
        return self.field.opened(value, row) if isinstance(value, bytes) else value

    def __set__(self, row: models.Model, value: object) -> None:
        row.__dict__[self.field.attname] = value


class SealedField(SealedColumn):
    """A value that is stored sealed: a row has bytes where it was read, and until it is saved what it was given."""

    descriptor_class = _Opened

    def opened(self, sealed: bytes, row: models.Model) -> Any:
        """Return what a row has in this column.

        Raises:
            CannotBeOpened: the secret key that it was sealed under is gone, or it is another row's.

        """
        return self.value_of(self.keys.open(sealed, place_of(getattr(row, self.bound_to))))

    def pre_save(self, model_instance: models.Model, add: bool) -> bytes:  # noqa: ARG002 - Django's signature
        """Return what is stored: sealed now, unless it is as it was read."""
        value = model_instance.__dict__[self.attname]
        if not isinstance(value, bytes):
            value = self.keys.seal(self.bytes_of(value), place_of(getattr(model_instance, self.bound_to)))
            model_instance.__dict__[self.attname] = value
        return value

    def get_db_prep_save(self, value: Any, connection: Any) -> Any:
        """Refuse what comes past a row, as from `QuerySet.update`: it would stand there for all to read."""
        if isinstance(value, str | Mapping):
            raise TypeError(f"{self.name} is kept sealed: set it on a row and save that.")
        return super().get_db_prep_save(value, connection)

    def bytes_of(self, value: Any) -> bytes:
        """Return the bytes that are sealed."""
        raise NotImplementedError

    def value_of(self, plain: bytes) -> Any:
        """Return what these bytes say."""
        raise NotImplementedError


class SealedText(SealedField):
    """A text that is stored sealed."""

    def bytes_of(self, value: str) -> bytes:
        """Return the bytes that are sealed."""
        return value.encode()

    def value_of(self, plain: bytes) -> str:
        """Return what these bytes say."""
        return plain.decode()
