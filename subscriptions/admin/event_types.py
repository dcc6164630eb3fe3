"""Event types in the admin."""

from typing import ClassVar, Final

from django.contrib import admin, messages
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import reverse

from broker_project.core.admin.theme import action, page_of, table
from subscriptions.admin.configured import ConfiguredAdmin
from subscriptions.admin.event_type_forms import EventTypeFileForm, EventTypeForm, encoded
from subscriptions.import_export import (
    FileFormat,
    Imported,
    ImportVerdict,
    RefusedEntries,
    UnreadableFile,
    export_event_types,
    import_event_types,
)
from subscriptions.models import EventType

PREVIEWED: Final = {
    ImportVerdict.CREATED: "would be created",
    ImportVerdict.CHANGED: "would be changed",
    ImportVerdict.UNCHANGED: "stays as it is",
}


@admin.register(EventType)
class EventTypeAdmin(ConfiguredAdmin[EventType]):
    """What can be published."""

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
        """Answer a file of all event types."""
        return _file_of(EventType.objects.configured())

    @admin.action(description="Export", permissions=["view"])
    def export_chosen(self, request: HttpRequest, chosen: QuerySet[EventType]) -> HttpResponse:  # noqa: ARG002
        """Answer a file of the chosen event types."""
        return _file_of(chosen)

    @action(description="Import", permissions=["add", "change"], icon="upload", url_path="import")
    def import_file(self, request: HttpRequest) -> HttpResponse:
        """Ask for a file, show what it would do, and do it once that was seen."""
        form = EventTypeFileForm(request.POST or None, request.FILES or None)
        if not form.is_valid():
            return self._page(request, form)
        content, confirmed = form.cleaned_data["content"], "confirmed" in request.POST
        try:
            imported = import_event_types(content, dry_run=not confirmed)
        except UnreadableFile as broken:
            return self._page(request, form, problem=str(broken))
        except RefusedEntries as refused:
            problems = table(["Where in the file", "What is wrong"], [(p.pointer, p.message) for p in refused.problems])
            return self._page(request, form, problem="Nothing can be imported from this file.", problems=problems)
        if confirmed:
            return self._done(request, imported)
        return self._page(request, EventTypeFileForm(), previewed=encoded(content), preview=_table_of(imported))

    def _page(self, request: HttpRequest, form: EventTypeFileForm, **more: object) -> HttpResponse:
        context = {**self.admin_site.each_context(request), **page_of(self, "Import event types")}
        return TemplateResponse(request, "subscriptions/import_event_types.html", {**context, "form": form, **more})

    def _done(self, request: HttpRequest, imported: list[Imported]) -> HttpResponse:
        for one in imported:
            if one.verdict is ImportVerdict.CREATED:
                self.log_addition(request, one.event_type, "Imported.")
            elif one.verdict is ImportVerdict.CHANGED:
                self.log_change(request, one.event_type, f"Imported {', '.join(one.changed)}.")
        verdicts = [one.verdict for one in imported]
        counts = ", ".join(f"{verdicts.count(verdict)} {verdict.lower()}" for verdict in ImportVerdict)
        self.message_user(request, f"Imported: {counts}.", messages.SUCCESS)
        return HttpResponseRedirect(reverse("admin:subscriptions_eventtype_changelist"))


def _file_of(chosen: QuerySet[EventType]) -> HttpResponse:
    return HttpResponse(
        export_event_types(chosen, FileFormat.YAML),
        content_type="application/yaml",
        headers={"Content-Disposition": 'attachment; filename="event-types.yaml"'},
    )


def _table_of(imported: list[Imported]) -> str:
    rows = [(one.event_type.name, PREVIEWED[one.verdict], ", ".join(one.changed)) for one in imported]
    return table(["Event type", "What the import would make of it", "Fields that would change"], rows)
