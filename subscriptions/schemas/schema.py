"""A schema, ready to judge payloads."""

import json
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from typing import Any, Final

from subscriptions.schemas.exact_json import UnreadableJson, exact_json
from subscriptions.schemas.limits import check_limits, text_of
from subscriptions.schemas.violations import Validator, Violation, validator_of, violations_in

MAX_VIOLATIONS: Final = 100
KEPT: Final = 256
"""Compiled schemas kept in a process."""


@dataclass(frozen=True, slots=True)
class Schema:
    """A JSON Schema that was found usable."""

    document: dict[str, Any]
    validator: Validator

    def violations(self, payload: str | bytes) -> list[Violation]:
        """Return what is wrong with a JSON text, nothing if it satisfies the schema; at most 101 entries."""
        try:
            value = exact_json(payload)
            if self.validator.is_valid(value):
                return []
        except UnreadableJson as broken:
            return [Violation("", f"It cannot be held against the schema: {broken}.")]
        return _listed(self.document, value)


def compiled(schema: object) -> Schema:
    """Return `schema`, a JSON object, ready for use; the same object for the same schema, as long as it is kept.

    Raises:
        BrokenSchema: it is no valid schema, or one that could take too long.

    """
    return _compiled(text_of(schema))


@lru_cache(maxsize=KEPT)
def _compiled(text: str) -> Schema:
    document = json.loads(text)
    check_limits(document)
    return Schema(document, validator_of(document))


def _listed(document: dict[str, Any], value: Any) -> list[Violation]:
    listed = list(islice(violations_in(document, value), MAX_VIOLATIONS + 1))
    if len(listed) > MAX_VIOLATIONS:
        listed[-1] = Violation("", f"There is more than these {MAX_VIOLATIONS}.")
    return listed
