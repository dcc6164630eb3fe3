"""Fields of queries, where everything is text."""

import re
from typing import Any, Final

from rest_framework import serializers

_WHOLE: Final = re.compile("-?[0-9]{1,19}")
"""So many digits has the largest number that the database takes."""


class QueryNumberField(serializers.IntegerField):
    """A whole number in a query."""

    default_error_messages = {"invalid": "Give a whole number."}

    def to_internal_value(self, data: Any) -> int:
        """Return the number; refuse " 5", "+5", "5.0" and digits that are not ASCII, which DRF would take for one."""
        if not isinstance(data, str) or not _WHOLE.fullmatch(data):
            self.fail("invalid")
        return super().to_internal_value(data)
