"""Publishers in the admin."""

from django.contrib import admin
from django.forms import ModelForm
from django.http import HttpRequest

from subscriptions.admin.configured import ConfiguredAdmin
from subscriptions.models import Publisher


@admin.register(Publisher)
class PublisherAdmin(ConfiguredAdmin[Publisher]):
    """Who publishes."""

    list_display = ("name", "description", "updated_at")
    search_fields = ("name", "description")
    ordering = ("name",)
    autocomplete_fields = ("event_types",)

    def save_related(self, request: HttpRequest, form: "ModelForm[Publisher]", formsets: object, change: bool) -> None:
        """Store the links of a new one; those of an old one were changed with it."""
        if not change:
            super().save_related(request, form, formsets, change)
