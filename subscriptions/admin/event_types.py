"""Event types in the admin, with import and export of a file of them."""

import base64
import binascii
from typing import Any, ClassVar, Final

from django import forms
from django.conf import settings
from django.contrib import admin, messages
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect

from broker_project.core.admin.model_admin import CONFIRMED, action
from broker_project.core.admin.theme import for_code, table
from subscriptions.admin.configured import ConfiguredAdmin, ConfiguredForm, PrettyJsonField
from subscriptions.import_export import (
    Imported,
    ImportVerdict,
    RefusedEntries,
    UnreadableFile,
    download_of,
    import_event_types,
)
from subscriptions.models import EventType
from subscriptions.models.event_types import EventTypeQuerySet

PREVIEWED: Final = {
    ImportVerdict.CREATED: "would be created",
    ImportVerdict.CHANGED: "would be changed",
    ImportVerdict.UNCHANGED: "stays as it is",
}


class EventTypeForm(ConfiguredForm):
    """An event type; the model says which fields go together."""

    class Meta:
        field_classes = {"schema": PrettyJsonField}

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        for name in self.fields.keys() & {"sample", "schema"}:
            for_code(self.fields[name].widget, rows=16)
        if "sample" in self.fields:
            self.fields["sample"].strip = False  # type: ignore[attr-defined]  # a payload keeps its outer blanks

    def clean_sample(self) -> str:
        """Return the sample with LF line ends; browsers send CRLF."""
        sample: str = self.cleaned_data["sample"]
        return sample.replace("\r\n", "\n")


class EventTypeFileForm(forms.Form):
    """A file of event types: uploaded, or carried along from the preview."""

    file = forms.FileField(required=False, help_text="JSON, as “Export” writes it. The next page shows a preview.")
    previewed = forms.CharField(required=False, widget=forms.HiddenInput)
    """The file in base64: a browser would change line ends in a text."""

    def clean(self) -> dict[str, Any]:
        """Add the file's bytes as `content`."""
        values = super().clean() or {}
        chosen = values.get("file")
        if chosen is not None and chosen.size > settings.MAX_BODY_BYTES:
            raise forms.ValidationError(f"A file has at most {settings.MAX_BODY_BYTES} bytes.")
        if chosen is None and not values.get("previewed"):
            raise forms.ValidationError("Choose a file.")
        try:
            content = chosen.read() if chosen else base64.b64decode(values["previewed"], validate=True)
        except (binascii.Error, ValueError):
            raise forms.ValidationError("Choose the file again.") from None
        return {**values, "content": content}


@admin.register(EventType)
class EventTypeAdmin(ConfiguredAdmin[EventType]):
    """What can be published."""

    when_empty = "No event type yet. Events of a type can be published once you have created it."
    form = EventTypeForm
    list_display = ("name", "kind", "content_type", "description", "updated_at")
    list_filter = ("kind",)
    search_fields = ("name", "description")
    ordering = ("name",)
    fixed = ("name", "kind")
    actions: ClassVar[tuple[str, ...]] = ("export_chosen",)
    actions_list: ClassVar[tuple[str, ...]] = ("export_all", "import_file")

    @action(description="Export", permissions=["view"], icon="download", url_path="export")
    def export_all(self, request: HttpRequest) -> HttpResponse:  # noqa: ARG002 - Django's signature
        """Return a file of all event types."""
        return download_of(EventType.objects.all())

    @admin.action(description="Export", permissions=["view"])
    def export_chosen(self, request: HttpRequest, chosen: EventTypeQuerySet) -> HttpResponse:  # noqa: ARG002
        """Return a file of the chosen event types."""
        return download_of(chosen)

    @action(description="Import", permissions=["add", "change"], icon="upload", url_path="import")
    def import_file(self, request: HttpRequest) -> HttpResponse:
        """Ask for a file, show a preview, and import the file once that is confirmed."""
        form = EventTypeFileForm(request.POST or None, request.FILES or None)
        if not form.is_valid():
            return self._import_page(request, form)
        content, is_confirmed = form.cleaned_data["content"], CONFIRMED in request.POST
        try:
            imported = import_event_types(content, dry_run=not is_confirmed)
        except UnreadableFile as broken:
            return self._import_page(request, form, problem=str(broken))
        except RefusedEntries as refused:
            problems = table(["Where in the file", "What is wrong"], [(p.pointer, p.message) for p in refused.problems])
            return self._import_page(
                request, form, problem="Nothing can be imported from this file.", problems=problems
            )
        if is_confirmed:
            return self._imported(request, imported)
        rows = [(one.event_type.name, PREVIEWED[one.verdict], ", ".join(one.changed)) for one in imported]
        preview = table(["Event type", "Effect of the import", "Fields that would change"], rows)
        previewed = base64.b64encode(content).decode()
        return self._import_page(request, EventTypeFileForm(), previewed=previewed, preview=preview)

    def _import_page(self, request: HttpRequest, form: EventTypeFileForm, **more: object) -> HttpResponse:
        template = "subscriptions/import_event_types.html"
        return self.page(request, template, "Import event types", form=form, confirmed=CONFIRMED, **more)

    def _imported(self, request: HttpRequest, imported: list[Imported]) -> HttpResponse:
        for one in imported:
            if one.verdict is ImportVerdict.CREATED:
                self.log_addition(request, one.event_type, "Imported.")
            elif one.verdict is ImportVerdict.CHANGED:
                self.log_change(request, one.event_type, f"Imported {', '.join(one.changed)}.")
        verdicts = [one.verdict for one in imported]
        counts = ", ".join(f"{verdicts.count(verdict)} {verdict.lower()}" for verdict in ImportVerdict)
        self.message_user(request, f"Imported: {counts}.", messages.SUCCESS)
        return HttpResponseRedirect(self.list_url())
