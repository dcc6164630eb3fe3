"""What has headers of its own: they often are secrets, so that they are kept sealed and never shown."""

from collections.abc import Mapping

from django.core.exceptions import ValidationError

from broker_project.core.keyring import CannotBeOpened
from broker_project.core.sealed_fields import SealedField
from subscriptions.headers import with_values_kept
from subscriptions.models.reserved_ids import ReservedId
from subscriptions.models.versioned import Versioned


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
        sealed = [field.name for field in self._meta.get_fields() if isinstance(field, SealedField)]
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
        except CannotBeOpened:
            return False
        return True
