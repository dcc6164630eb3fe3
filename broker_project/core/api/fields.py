"""Strict serializer fields: they accept what was meant and nothing else."""

import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any, ClassVar, Final, NoReturn, TypeVar

from django.db import models
from rest_framework import serializers
from rest_framework.fields import empty
from rest_framework.validators import UniqueValidator

Record = TypeVar("Record", bound=models.Model)

_WHOLE: Final = re.compile("-?[0-9]{1,19}")
"""So many digits has the largest number that the database takes."""

SHOWN_BY_NAME: Final = (
    "Values are often secrets and never shown: null. A null that is sent keeps the value that there is."
)


class TextField(serializers.CharField):
    """A JSON string, kept to the last blank."""

    default_error_messages = {"not_text": "Give a text."}

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"trim_whitespace": False, **options})

    def to_internal_value(self, data: Any) -> str:
        """Return the text; refuse numbers and booleans, which DRF would write out."""
        if not isinstance(data, str):
            self.fail("not_text")
        return super().to_internal_value(data)


class WholeNumberField(serializers.IntegerField):
    """A JSON number without a fraction."""

    default_error_messages = {"invalid": "Give a whole number."}

    def to_internal_value(self, data: Any) -> int:
        """Return the number; refuse "5", 5.0 and true, which DRF would take for one."""
        if type(data) is not int:
            self.fail("invalid")
        return super().to_internal_value(data)


class NumberField(serializers.FloatField):
    """A JSON number."""

    default_error_messages = {"invalid": "Give a number."}

    def to_internal_value(self, data: Any) -> float:
        """Return the number; refuse "5" and true, which DRF would take for one."""
        if type(data) not in {int, float}:
            self.fail("invalid")
        return super().to_internal_value(data)


class TruthField(serializers.BooleanField):
    """A JSON true or false."""

    default_error_messages = {"invalid": "Give true or false."}

    def to_internal_value(self, data: Any) -> bool:
        """Return it; refuse 1 and "yes", which DRF would take for true."""
        if type(data) is not bool:
            self.fail("invalid", input=data)
        return data


class OneOfField(serializers.ChoiceField):
    """One of a few texts; a refusal lists them."""

    default_error_messages = {"invalid_choice": '"{input}" is none of {choices}.'}

    def fail(self, key: str, **values: Any) -> NoReturn:
        """Raise `ValidationError`."""
        super().fail(key, choices=", ".join(map(str, self.choices)), **values)


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
        """Return the object of that name; refuse what is not a text."""
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


class StrictSerializer(serializers.Serializer[Any]):
    """Refuses fields that it does not know or that cannot be set."""

    def to_internal_value(self, data: Any) -> Any:
        """Return the validated values."""
        if isinstance(data, Mapping):
            refuse_unknown(self, data)
        return super().to_internal_value(data)


class StrictModelSerializer(serializers.ModelSerializer[Record]):
    """The same for a model; that a name is taken, the database says (409), since only it can know."""

    elsewhere: ClassVar[Mapping[str, str]] = {}
    """Of fields that cannot be set here, where they are."""
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

    def to_internal_value(self, data: Any) -> Any:
        """Return the validated values."""
        if isinstance(data, Mapping):
            refuse_unknown(self, data)
        return super().to_internal_value(data)

    def build_standard_field(self, field_name: str, model_field: Any) -> Any:
        """Return DRF's field without its check-then-act for unique values."""
        field_class, options = super().build_standard_field(field_name, model_field)
        kept = [rule for rule in options.get("validators", ()) if not isinstance(rule, UniqueValidator)]
        return field_class, {**options, "validators": kept} if "validators" in options else options


def refuse_unknown(serializer: serializers.Serializer[Any], data: Mapping[str, Any]) -> None:
    """Raise `ValidationError` for members that are no fields, or fields that callers cannot set."""
    fields = serializer.fields
    elsewhere: Mapping[str, str] = getattr(serializer, "elsewhere", {})
    refused = {
        name: [f"This cannot be set here{elsewhere.get(name, '')}." if name in fields else "There is no such field."]
        for name in data
        if name not in fields or fields[name].read_only
    }
    if refused:
        raise serializers.ValidationError(refused, code="unknown_field")


class QueryNumberField(serializers.IntegerField):
    """A whole number in a query."""

    default_error_messages = {"invalid": "Give a whole number."}

    def to_internal_value(self, data: Any) -> int:
        """Return the number; refuse " 5", "+5", "5.0" and digits that are not ASCII, which DRF would take for one."""
        if not isinstance(data, str) or not _WHOLE.fullmatch(data):
            self.fail("invalid")
        return super().to_internal_value(data)


class MomentField(serializers.DateTimeField):
    """A moment with its zone: without one it would mean another in each place."""

    default_error_messages = {"invalid": "A time is given with its zone, as in 2026-12-24T18:00:00Z."}

    def enforce_timezone(self, value: datetime) -> datetime:
        """Return the moment in our zone; refuse one that says none, which DRF would take for ours."""
        if value.tzinfo is None:
            self.fail("invalid")
        return super().enforce_timezone(value)
