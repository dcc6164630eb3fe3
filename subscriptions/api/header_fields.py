"""Custom headers over the API: you can set them, and read only their names."""

from collections.abc import Mapping
from typing import Any

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from broker_project.core.api.fields import SHOWN_BY_NAME
from subscriptions.headers import validate_headers
from subscriptions.models.base import WithHeaders


@extend_schema_field({"type": ["object", "null"], "additionalProperties": {"type": ["string", "null"]}})
class HeadersField(serializers.Field[Any, Any, Any, Any]):
    """Names and values; of what is stored only the names are shown, with null for every value."""

    def __init__(self, *, help_text: str) -> None:
        super().__init__(required=False, help_text=f"{help_text} {SHOWN_BY_NAME}")

    def to_internal_value(self, data: Any) -> dict[str, str | None]:
        """Return the headers, checked; of a new record all values, else null where one stays."""
        keeps = self.root.partial and isinstance(data, Mapping)
        validate_headers({name: value for name, value in data.items() if value is not None} if keeps else data)
        return dict(data)

    def get_attribute(self, instance: WithHeaders) -> list[str] | None:
        """Return the names; None where they cannot be read."""
        return instance.header_names

    def to_representation(self, value: list[str]) -> dict[str, None]:
        """Return the names, without values."""
        return dict.fromkeys(value)
