"""What has headers in the admin: they are set there and never shown, but for their names."""

from typing import Any

from django import forms
from django.http import HttpRequest

from broker_project.core.admin.theme import UnfoldAdminTextareaWidget, display
from subscriptions.admin.configured import ConfiguredAdmin, Record
from subscriptions.admin.event_type_forms import CODE, PrettyJsonField
from subscriptions.headers import with_values_kept
from subscriptions.models.base import EncryptedHeaders, WithHeaders


class HeadedForm(forms.ModelForm):  # type: ignore[type-arg]  # no brackets at run time
    """The form of what has headers: null stands for the value that there is."""

    class Meta:
        field_classes = {"headers": PrettyJsonField}

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        if "headers" in self.fields:
            self.fields["headers"].widget.attrs |= {**CODE, "rows": 4}

    def clean_headers(self) -> dict[str, str | None]:
        """Return the headers as they are given; refuse a null for what has no value that can be read."""
        given: dict[str, str | None] = {} if self.cleaned_data["headers"] is None else self.cleaned_data["headers"]
        with_values_kept(given, self.instance.readable_headers)
        return given


class HeadedAdmin(ConfiguredAdmin[Record]):
    """A model with headers."""

    form = HeadedForm
    formfield_overrides = {EncryptedHeaders: {"widget": UnfoldAdminTextareaWidget}}

    def get_fieldsets(self, request: HttpRequest, obj: Record | None = None) -> list[Any]:
        """Return the groups; who may not change it sees names in place of the field of headers."""
        groups = super().get_fieldsets(request, obj)
        if obj is None or self.has_change_permission(request, obj):
            return groups
        return [(title, {"fields": [_shown(name) for name in group["fields"]]}) for title, group in groups]

    def get_readonly_fields(self, request: HttpRequest, obj: Record | None = None) -> tuple[str, ...]:
        """Return what cannot be read any more too, if there is any."""
        told = ("to_be_set_anew",) if isinstance(obj, WithHeaders) and obj.unreadable else ()
        return (*super().get_readonly_fields(request, obj), *told)

    @display(description="headers")
    def header_names(self, record: WithHeaders) -> str:
        """Return the names of its headers."""
        return ", ".join(record.header_names or ())

    @display(description="to be set anew")
    def to_be_set_anew(self, record: WithHeaders) -> str:
        """Return what cannot be read any more, and what follows."""
        names = " and ".join(name.replace("_", " ") for name in record.unreadable)
        return f"{names}: sealed under a secret key that is gone. Until it is set anew, nothing is sent."


def _shown(name: str) -> str:
    return "header_names" if name == "headers" else name
