"""The forms of event types: their own, and that of a file of them."""

import base64
import binascii
import json
from typing import Any

from django import forms
from django.conf import settings
from django.forms.fields import InvalidJSONInput

CODE = {"style": "font-family: monospace", "spellcheck": "false", "autocapitalize": "off"}
"""Attributes of a field in which JSON is written."""


class PrettyJsonField(forms.JSONField):
    """JSON as people read it."""

    def prepare_value(self, value: Any) -> Any:
        """Return the JSON with its parts below each other; what could not be read, as it was given."""
        if value is None or isinstance(value, InvalidJSONInput):
            return value
        return json.dumps(value, indent=2, ensure_ascii=False)

    def to_python(self, value: Any) -> Any:
        """Return the value, or say where it is no JSON; refuse also what cannot be read, stored or shown again."""
        try:
            read = super().to_python(value)
        except forms.ValidationError as refused:
            raise forms.ValidationError(f"This is not JSON: {refused.__context__}.") from None
        except (RecursionError, ValueError):
            raise forms.ValidationError("This is nested too deep, or a number has too many digits.") from None
        if not _is_storable(read):
            raise forms.ValidationError("This has NUL, half of a character (\\ud800), or a number that is none.")
        return read

    def bound_data(self, data: Any, initial: Any) -> Any:
        """Return what the page shows again."""
        try:
            shown = super().bound_data(data, initial)
            return shown if _is_storable(shown) else InvalidJSONInput(data)
        except (RecursionError, ValueError):
            return InvalidJSONInput(data)


def _is_storable(value: Any) -> bool:
    """Tell whether PostgreSQL can keep it and a page show it: without NUL, NaN and lone surrogates."""
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
        text.encode()
    except ValueError:
        return False
    return r"\u0000" not in text.replace(r"\\", "")


class EventTypeForm(forms.ModelForm):  # type: ignore[type-arg]  # no brackets at run time
    """An event type; the model says what goes together."""

    class Meta:
        field_classes = {"schema": PrettyJsonField}

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        for name in self.fields.keys() & {"sample", "schema"}:
            self.fields[name].widget.attrs |= {**CODE, "rows": 16}
        if "sample" in self.fields:
            self.fields["sample"].strip = False  # type: ignore[attr-defined]  # a payload is kept to the last blank

    def clean_sample(self) -> str:
        """Return the sample with the line ends it had before a browser made others of them."""
        sample: str = self.cleaned_data["sample"]
        return sample.replace("\r\n", "\n")


class EventTypeFileForm(forms.Form):
    """A file of event types: chosen, or on its way from the preview."""

    file = forms.FileField(
        required=False, help_text="JSON or YAML, as “Export” writes it. The next page shows what would be done."
    )
    previewed = forms.CharField(required=False, widget=forms.HiddenInput)

    def clean(self) -> dict[str, Any]:
        """Add the file's bytes as `content`."""
        values = super().clean() or {}
        chosen = values.get("file")
        if chosen is not None and chosen.size > settings.MAX_BODY_BYTES:
            raise forms.ValidationError(f"A file has at most {settings.MAX_BODY_BYTES} bytes.")
        if chosen is None and not values.get("previewed"):
            raise forms.ValidationError("Choose a file.")
        return {**values, "content": chosen.read() if chosen else _decoded(values["previewed"])}


def encoded(content: bytes) -> str:
    """Return a file's content as `previewed` carries it: a browser would change line ends in a text."""
    return base64.b64encode(content).decode()


def _decoded(previewed: str) -> bytes:
    try:
        return base64.b64decode(previewed, validate=True)
    except (binascii.Error, ValueError):
        raise forms.ValidationError("Choose the file again.") from None
