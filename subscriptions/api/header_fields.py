"""Custom headers in JSON."""

from collections.abc import Mapping
from typing import Any

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from subscriptions.headers import validate_headers


@extend_schema_field({"type": "object", "additionalProperties": {"type": ["string", "null"]}})
class HeadersField(serializers.Field[Any, Any, Any, Any]):
    """Names and values; lists show null for every value, since values are often secrets."""

    def to_internal_value(self, data: Any) -> dict[str, str]:
        """Return the headers, checked."""
        validate_headers(data)
        return dict(data)

    def to_representation(self, value: Mapping[str, str]) -> dict[str, str | None]:
        """Return the headers, in lists without their values."""
        masked = isinstance(self.root, serializers.ListSerializer)
        return dict.fromkeys(value) if masked else dict(value)
