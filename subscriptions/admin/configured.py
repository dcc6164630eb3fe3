"""What all configured things share in the admin: changes go through the use cases."""

from collections.abc import Callable
from typing import Any, ClassVar, Final, Generic, TypeVar

from django.contrib import messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.admin.utils import unquote
from django.core.exceptions import ValidationError
from django.db.models import QuerySet
from django.forms import ModelForm
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import reverse

from broker_project.core.admin.row_ids import could_be_of
from broker_project.core.admin.theme import ModelAdmin
from subscriptions import edit
from subscriptions.models.base import Versioned

Record = TypeVar("Record", bound=Versioned)

REST: Final = "How it stands"


class ConfiguredAdmin(ModelAdmin, Generic[Record]):
    """One configured model; forms write only what was changed in them, so a stale form undoes nothing else."""

    kept_by_the_broker: ClassVar[tuple[str, ...]] = ("version", "created_at", "updated_at")
    fixed: ClassVar[tuple[str, ...]] = ()
    """Fields that cannot change after creation."""
    groups: ClassVar[tuple[tuple[str | None, tuple[str, ...]], ...]] = ()
    """How its form is divided, by title; what stands in none of them comes last, and what it has not got in none."""
    show_full_result_count = False
    list_per_page = 50

    def get_readonly_fields(self, request: HttpRequest, obj: Record | None = None) -> tuple[str, ...]:  # noqa: ARG002
        """Return what the form shows but does not change."""
        return (*self.fixed, *self.kept_by_the_broker) if obj else ()

    def get_fieldsets(self, request: HttpRequest, obj: Record | None = None) -> list[Any]:
        """Return the groups, and last what the broker keeps."""
        fields = self.get_fields(request, obj)
        grouped = [(title, {"fields": [name for name in names if name in fields]}) for title, names in self.groups]
        rest = [name for name in fields if not any(name in names for _, names in self.groups)]
        return [*grouped, *([(REST if self.groups else None, {"fields": rest})] if rest else ())]

    def get_actions(self, request: HttpRequest) -> dict[str, Any]:
        """Return the actions on many, without deleting them: what still needs something is told one by one."""
        return {name: what for name, what in super().get_actions(request).items() if name != "delete_selected"}

    def has_change_permission(self, request: HttpRequest, obj: Record | None = None) -> bool:
        """Tell whether the user may change it: what came installed nobody."""
        return not _is_built_in(obj) and super().has_change_permission(request, obj)

    def has_delete_permission(self, request: HttpRequest, obj: Record | None = None) -> bool:
        """Tell whether the user may delete it: what came installed nobody."""
        return not _is_built_in(obj) and super().has_delete_permission(request, obj)

    def get_deleted_objects(self, objs: Any, request: HttpRequest) -> tuple[Any, Any, set[str], Any]:
        """Return what goes with it; a record's own keys and lines need no permission of their own."""
        deleted, counts, _, protected = super().get_deleted_objects(objs, request)
        return deleted, counts, set(), protected

    def save_model(self, request: HttpRequest, obj: Record, form: "ModelForm[Record]", change: bool) -> None:
        """Create it, or change what was changed in the form."""
        if not change:
            self.create(request, obj, form)
            return
        changes = {name: _plain(form.cleaned_data[name]) for name in form.changed_data}
        edit.change(self.only(obj.pk), changes=changes)

    def create(self, request: HttpRequest, obj: Record, form: "ModelForm[Record]") -> None:  # noqa: ARG002 - for subclasses
        """Create it."""
        edit.create(obj)

    def delete_model(self, request: HttpRequest, obj: Record) -> None:  # noqa: ARG002 - Django's signature
        """Delete it unless something needs it."""
        edit.remove(self.only(obj.pk))

    def changeform_view(
        self, request: HttpRequest, object_id: str | None = None, form_url: str = "", extra_context: Any = None
    ) -> HttpResponse:
        """Show and save the form; where what others saved in the same instant does not go with it, say so."""
        try:
            return super().changeform_view(request, object_id, form_url, extra_context)
        except (ValidationError, edit.NameTaken) as refused:
            why = " ".join(refused.messages) if isinstance(refused, ValidationError) else str(refused)
            self.message_user(request, f"Not saved, for others have just changed something: {why}", messages.ERROR)
            return HttpResponseRedirect(request.get_full_path())

    def delete_view(self, request: HttpRequest, object_id: str, extra_context: Any = None) -> HttpResponse:
        """Ask and delete; where something still needs it, say what."""
        try:
            return super().delete_view(request, object_id, extra_context)  # type: ignore[no-any-return]
        except edit.StillInUse as refused:
            self.message_user(request, f"Not deleted. {refused}", messages.ERROR)
            return HttpResponseRedirect(self.page_of(unquote(object_id)))

    def only(self, pk: object) -> QuerySet[Record]:
        """Return the one record, for a use case to lock; none where none can have this id."""
        everything: QuerySet[Record] = self.model._default_manager.all()  # noqa: SLF001 - documented by Django
        return everything.filter(pk=pk) if could_be_of(self.model, pk) else everything.none()

    def page_of(self, pk: object) -> str:
        """Return the address of a record's page."""
        return reverse(f"admin:{self.opts.app_label}_{self.opts.model_name}_change", args=[pk])

    def each_confirmed(
        self, request: HttpRequest, chosen: QuerySet[Record], question: str, do: Callable[[Record], str]
    ) -> HttpResponse | None:
        """Ask once, then `do` it to each chosen one, noting in its history what `do` returns."""
        if "confirmed" not in request.POST:
            context = {
                **self.admin_site.each_context(request),
                "title": question,
                "chosen": chosen,
                "action": request.POST["action"],
                "checkbox": ACTION_CHECKBOX_NAME,
                "opts": self.opts,
            }
            return TemplateResponse(request, "subscriptions/confirm.html", context)
        for record in chosen:
            self.log_change(request, record, do(record))
        self.message_user(request, f"Done for {len(chosen)}.", messages.SUCCESS)
        return None


def _plain(value: Any) -> Any:
    """Return what a use case takes for a form's value: a list for links to many."""
    return list(value) if isinstance(value, QuerySet) else value


def _is_built_in(row: object) -> bool:
    """Tell whether a row came with the broker; of a row's actions unfold asks with its id, and each looks itself."""
    return isinstance(row, Versioned) and row.is_built_in
