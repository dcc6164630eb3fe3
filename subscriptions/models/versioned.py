"""What every configured thing has: a version that the database raises at each change."""

from collections.abc import Collection, Mapping
from typing import ClassVar

from django.db import models
from django.db.models.functions import Now


class Versioned(models.Model):
    """Base of what people configure; a trigger raises `version`, whoever changes the row and however.

    The version is the `ETag` of the API and tells a line that its subscription has changed (behaviour 4.9).
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
