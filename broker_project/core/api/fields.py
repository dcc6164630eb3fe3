"""Serializer fields that never coerce: no "5" for 5, no 1 for true."""

import base64
import re
from collections.abc import Mapping
from datetime import MAXYEAR, MINYEAR, datetime
from functools import partial
from typing import Any, ClassVar, Final, NoReturn, TypeVar

from django.db import models
from django.urls.converters import IntConverter
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers
from rest_framework.fields import empty
from rest_framework.validators import UniqueValidator

Record = TypeVar("Record", bound=models.Model)

MAX_ID: Final = 2**63 - 1
MAX_ID_DIGITS: Final = 18
IDS: Final[Mapping[str, Any]] = {"min_value": 1, "max_value": MAX_ID}
"""Options of number fields that take an id."""

NullableText: Final = partial(serializers.CharField, default=None, read_only=True, allow_null=True)
NullableTime: Final = partial(serializers.DateTimeField, read_only=True, allow_null=True)


def id_of(text: str, prefix: str = "") -> int | None:
    """Return the id that a text is, with or without the prefix of its kind; None if no row could have it."""
    digits = text.removeprefix(prefix)
    is_id = digits.isascii() and digits.isdigit() and len(digits) <= MAX_ID_DIGITS
    return int(digits) if is_id else None


def id_converter(prefix: str) -> type[IntConverter]:
    """Return the path converter of ids that are taken with or without the prefix of their kind."""

    class IdConverter(IntConverter):
        regex = f"(?:{prefix})?[0-9]+"

        def to_python(self, value: str) -> int:
            return super().to_python(value.removeprefix(prefix))

    return IdConverter


class TextField(serializers.CharField):
    """A JSON string, kept with its blanks."""

    default_error_messages = {"not_text": "Give a text."}

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"trim_whitespace": False, **options})

    def to_internal_value(self, data: Any) -> str:
        """Return the text; refuse numbers and booleans, which DRF would convert."""
        if not isinstance(data, str):
            self.fail("not_text")
        return super().to_internal_value(data)


class _ExactType:
    """A field that refuses JSON values of other types, such as "5" and true for a number, which DRF would convert."""

    accepted: ClassVar[frozenset[type]]

    def to_internal_value(self, data: Any) -> Any:
        """Return the value."""
        if type(data) not in self.accepted:
            self.fail("invalid", input=data)  # type: ignore[attr-defined]  # of the field
        return super().to_internal_value(data)  # type: ignore[misc]


class WholeNumberField(_ExactType, serializers.IntegerField):
    """A JSON number without a fraction."""

    accepted = frozenset({int})
    default_error_messages = {"invalid": "Give a whole number."}


class NumberField(_ExactType, serializers.FloatField):
    """A JSON number."""

    accepted = frozenset({int, float})
    default_error_messages = {"invalid": "Give a number."}


class TruthField(_ExactType, serializers.BooleanField):
    """A JSON true or false."""

    accepted = frozenset({bool})
    default_error_messages = {"invalid": "Give true or false."}


class OneOfField(serializers.ChoiceField):
    """One of a few texts; the error lists them."""

    default_error_messages = {"invalid_choice": '"{input}" is not one of {choices}.'}

    def fail(self, key: str, **values: Any) -> NoReturn:
        """Raise `ValidationError`."""
        super().fail(key, choices=", ".join(map(str, self.choices)), **values)


@extend_schema_field(OpenApiTypes.STR)
class MultipleValuesField(OneOfField):
    """One or several of a few texts in a query, separated by commas."""

    def __init__(self, choices: Any, *, help_text: str = "", **options: Any) -> None:
        listed = f"One or several of {', '.join(value for value, _ in choices)}, separated by commas."
        super().__init__(choices, help_text=f"{help_text} {listed}".strip(), **options)

    def to_internal_value(self, data: Any) -> Any:
        """Return the texts."""
        given = data.split(",") if isinstance(data, str) else [data]
        return [*dict.fromkeys(super(MultipleValuesField, self).to_internal_value(one) for one in given)]


class NameField(serializers.SlugRelatedField[Record]):
    """Another object, by its name."""

    default_error_messages = {"not_text": "Give a name."}

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"slug_field": "name", **options})

    def run_validation(self, data: Any = empty) -> Any:
        """Return the object; refuse "", which DRF would take for null."""
        if data == "":
            self.fail("not_text")
        return super().run_validation(data)

    def to_internal_value(self, data: Any) -> Record:
        """Return the object with this name; refuse anything but a text."""
        if not isinstance(data, str) or "\0" in data:
            self.fail("not_text")
        return super().to_internal_value(data)


class NamesField(serializers.ManyRelatedField):
    """Other objects, by an array of their names."""

    def to_internal_value(self, data: Any) -> Any:
        """Return the objects; refuse {}, which DRF would take for an empty array."""
        if not isinstance(data, list):
            self.fail("not_a_list", input_type=type(data).__name__)
        return super().to_internal_value(data)


class MomentField(serializers.DateTimeField):
    """A time with its zone."""

    default_error_messages = {"invalid": "A time is given with its zone, as in 2026-12-24T18:00:00Z."}

    def enforce_timezone(self, value: datetime) -> datetime:
        """Return the time in our zone; refuse one without a zone, which DRF would take for ours.

        Refuse the first and the last year that there is, too: a range is looked at with what is next to it.
        """
        if value.tzinfo is None:
            self.fail("invalid")
        if value.year in {MINYEAR, MAXYEAR}:
            self.fail("overflow")
        return super().enforce_timezone(value)


class QueryNumberField(serializers.IntegerField):
    """A whole number in a query: at most as many digits as the database's largest number has."""

    default_error_messages = {"invalid": "Give a whole number."}

    def to_internal_value(self, data: Any) -> int:
        """Return the number; refuse " 5", "+5", "5.0" and digits that are not ASCII, which DRF would convert."""
        if not isinstance(data, str) or not re.fullmatch("-?[0-9]{1,19}", data):
            self.fail("invalid")
        return super().to_internal_value(data)


class QueryIdField(QueryNumberField):
    """An id in a query, with or without the prefix of its kind."""

    def __init__(self, *, prefix: str = "", **options: Any) -> None:
        self.prefix = prefix
        super().__init__(**IDS, **options)

    def to_internal_value(self, data: Any) -> int:
        """Return the number."""
        return super().to_internal_value(data.removeprefix(self.prefix) if isinstance(data, str) else data)


@extend_schema_field(OpenApiTypes.STR)
class DecodedField(serializers.Field[Any, Any, Any, Any]):
    """Bytes, shown as text; null if they cannot be decoded."""

    def __init__(self, encoding: str = "utf-8", errors: str = "strict", **options: Any) -> None:
        self.encoding, self.errors = encoding, errors
        super().__init__(read_only=True, **options)

    def to_representation(self, value: Any) -> str | None:
        """Return the text."""
        try:
            return bytes(value).decode(self.encoding, self.errors)
        except UnicodeDecodeError:
            return None


@extend_schema_field(OpenApiTypes.STR)
class Base64Field(serializers.Field[Any, Any, Any, Any]):
    """Bytes, as base64."""

    default_error_messages = {"not_text": "Give a text.", "invalid": "This is not base64."}

    def to_internal_value(self, data: Any) -> bytes:
        """Return the bytes."""
        if not isinstance(data, str):
            self.fail("not_text")
        try:
            return base64.b64decode(data, validate=True)
        except ValueError:
            self.fail("invalid")

    def to_representation(self, value: Any) -> str:
        """Return the base64 text."""
        return base64.b64encode(value).decode()


class _KnownFields:
    """A serializer that refuses unknown fields and fields that callers cannot set."""

    elsewhere: ClassVar[Mapping[str, str]] = {}
    """For fields that cannot be set here: where they can."""
    example: ClassVar[Mapping[str, Any]] = {}
    """A request, for the OpenAPI document."""

    def to_internal_value(self, data: Any) -> Any:
        """Return the validated values."""
        fields: Mapping[str, Any] = self.fields  # type: ignore[attr-defined]  # of the serializer
        refused = {
            name: [
                f"This cannot be set here{self.elsewhere.get(name, '')}."
                if name in fields
                else "There is no such field."
            ]
            for name in (data if isinstance(data, Mapping) else ())
            if name not in fields or fields[name].read_only
        }
        if refused:
            raise serializers.ValidationError(refused, code="unknown_field")
        return super().to_internal_value(data)  # type: ignore[misc]


class StrictSerializer(_KnownFields, serializers.Serializer[Any]):
    """Refuses unknown fields and fields that cannot be set.

    The underscore at the end of a name that is a Python keyword, such as `from_`, is not part of the field's name.
    """

    def get_fields(self) -> dict[str, Any]:
        """Return the fields by their names in JSON."""
        return {name.rstrip("_"): field for name, field in super().get_fields().items()}


class StrictModelSerializer(_KnownFields, serializers.ModelSerializer[Record]):
    """The same for a model. Only the database can know that a name is taken (409), so nothing is checked here."""

    fixed: ClassVar[tuple[str, ...]] = ()
    """Fields that can be set when a record is created, and not changed later."""
    serializer_choice_field = OneOfField
    serializer_field_mapping = {
        **serializers.ModelSerializer.serializer_field_mapping,
        models.CharField: TextField,
        models.TextField: TextField,
        models.PositiveIntegerField: WholeNumberField,
        models.PositiveSmallIntegerField: WholeNumberField,
        models.FloatField: NumberField,
        models.BooleanField: TruthField,
    }

    def get_fields(self) -> dict[str, Any]:
        """Return the fields; for a change, the fixed ones are read-only."""
        fields = super().get_fields()
        for name in self.fixed if self.partial else ():
            fields[name].read_only = True
        return fields

    def build_standard_field(self, field_name: str, model_field: Any) -> Any:
        """Return DRF's field without its check-then-act for unique values."""
        field_class, options = super().build_standard_field(field_name, model_field)
        kept = [rule for rule in options.get("validators", ()) if not isinstance(rule, UniqueValidator)]
        return field_class, {**options, "validators": kept} if "validators" in options else options
