"""What an event type's sample and schema must be, each by itself and the one to the other (behaviour 1.1)."""

from typing import Final

from django.core.exceptions import ValidationError

from broker_project.core.media_types import is_json
from subscriptions.schemas import BrokenSchema, Schema, compiled
from subscriptions.schemas.exact_json import UnreadableJson, exact_json

MOST_SHOWN: Final = 20
"""Violations told of one sample."""


def check_sample(content_type: str, sample: str, schema: object) -> None:
    """Raise `ValidationError` unless payloads like `sample` ("": none) could be published under `schema` (None: none).

    Its messages are those of the fields `schema` and `sample`.
    """
    usable = None if schema is None else _usable(content_type, schema)
    if not sample or not is_json(content_type):
        return
    try:
        exact_json(sample)
    except UnreadableJson as broken:
        raise _refused("sample", [f"This event type's payloads are JSON, and the sample is not: {broken}."]) from None
    violations = usable.violations(sample) if usable else []
    if violations:
        told = [f"At {one.pointer or 'the top'}: {one.message}." for one in violations[:MOST_SHOWN]]
        raise _refused("sample", ["The sample does not satisfy the schema.", *told])


def _usable(content_type: str, schema: object) -> Schema:
    if not is_json(content_type):
        raise _refused("schema", [f"Only JSON has a schema, and the content type is {content_type}."])
    try:
        return compiled(schema)
    except BrokenSchema as broken:
        raise _refused("schema", [str(broken)]) from None


def _refused(field: str, messages: list[str]) -> ValidationError:
    return ValidationError({field: messages})
