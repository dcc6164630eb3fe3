"""The base of all configuration pages: changes go through the use cases, and header values are never shown."""

import json
from collections.abc import Callable, Sequence
from functools import partial
from time import monotonic
from typing import Any, ClassVar, Final, Generic, TypeVar

from django import forms
from django.contrib import admin, messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.admin.utils import unquote
from django.core.exceptions import ObjectDoesNotExist, ValidationError
from django.db.models import QuerySet
from django.forms import BoundField, ModelForm
from django.forms.fields import InvalidJSONInput
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect

from broker_project.core.admin.model_admin import (
    CONFIRMED,
    MAX_CHOSEN,
    ModelAdmin,
    action,
    after_dialog,
    column,
    dialog,
    state_column,
)
from broker_project.core.admin.theme import ActionVariant, UnfoldAdminTextareaWidget, for_code
from subscriptions import edit
from subscriptions.headers import with_values_kept
from subscriptions.models import Status
from subscriptions.models.base import EncryptedHeaders, Versioned, WithHeaders

Record = TypeVar("Record", bound=Versioned)

ACTIVATION_COLOURS: Final = {"ACTIVE": "success", "INACTIVE": "danger"}
ACTIVATING: Final = "New messages will match again, and unfinished deliveries are sent in order."
INACTIVATE: Final = "Inactivate (loses messages)"
INACTIVATING: Final = (
    "Inactivate, and lose messages? What is published until you activate it again is never delivered to it."
)
CHANGED_MEANWHILE: Final = "Somebody else has changed this since you opened the page. Open it again and change that."
MAX_REASONS: Final = 3
"""Records that a message names, with why nothing was done to them; the history of each says it too."""
EACH_SECONDS: Final = 5.0
"""After this time an action on chosen records asks about the rest again: one may take as long by itself."""
INACTIVATE_BUTTON: Final[dict[str, Any]] = {"submit": "Inactivate", "variant": ActionVariant.DANGER}


class ConfiguredForm(forms.ModelForm):  # type: ignore[type-arg]  # no brackets at run time
    """The form of a configured model, which changes only what its user changed: a stale form overwrites nothing else.

    Hidden fields say what its page has shown: all values, but only the names of headers.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        if self.instance.pk:
            for field in self.fields.values():
                field.show_hidden_initial = True

    def clean(self) -> dict[str, Any]:
        """Return what the user changed; refuse a field that somebody else has changed since the page was opened."""
        values: dict[str, Any] = super().clean() or {}
        if not self.instance.pk:
            return values
        for name in self.changed_data:
            if name in values and self._is_contested(self[name]):
                self.add_error(name, CHANGED_MEANWHILE)
        return {name: values[name] for name in self.changed_data if name in values}

    def add_error(self, field: str | None, error: Any) -> None:
        """Add an error; above the form, if it is about a field that the form does not have.

        The model's check of all fields together says nothing of a refused one: it has no value there.
        """
        for name, errors in getattr(error, "error_dict", {field: error}).items():
            if name not in self.fields:
                super().add_error(None, errors)
            elif name == field or name not in self.errors:
                super().add_error(name, errors)

    def _is_contested(self, bound: BoundField) -> bool:
        """Tell whether the present value of a field is neither what its page has shown nor what is wanted."""
        now, field = bound.initial, bound.field
        shown = field.hidden_widget().value_from_datadict(self.data, self.files, bound.html_initial_name)
        if isinstance(now, str):  # browsers change line ends, and fields remove outer blanks
            return now.split() not in [(text or "").split() for text in (shown, bound.data)]
        return all(field.has_changed(now, one) for one in (shown, bound.data))


class ConfiguredAdmin(ModelAdmin, Generic[Record]):
    """One configured model."""

    form = ConfiguredForm
    conflicts = (ValidationError, ObjectDoesNotExist, edit.NameTaken, edit.VersionMismatch)
    kept_by_the_broker: ClassVar[tuple[str, ...]] = ("version", "created_at", "updated_at")
    fixed: ClassVar[tuple[str, ...]] = ()
    """Fields that cannot change after creation."""
    groups: ClassVar[tuple[tuple[str | None, tuple[str, ...]], ...]] = ()
    """The sections of the form, by title. Fields that the form does not have are left out; the rest comes last."""
    show_full_result_count = False
    list_per_page = 50

    def get_readonly_fields(self, request: HttpRequest, obj: Record | None = None) -> tuple[str, ...]:  # noqa: ARG002
        """Return what the form shows but does not change."""
        return (*self.fixed, *self.kept_by_the_broker) if obj else ()

    def get_fieldsets(self, request: HttpRequest, obj: Record | None = None) -> list[Any]:
        """Return the sections, and last what the broker keeps."""
        fields = self.get_fields(request, obj)
        sections = [(title, [name for name in names if name in fields]) for title, names in self.groups]
        rest = [name for name in fields if not any(name in names for _, names in self.groups)]
        if rest:
            sections.append(("State" if self.groups else None, rest))
        return [(title, {"fields": names}) for title, names in sections]

    def get_actions(self, request: HttpRequest) -> dict[str, Any]:
        """Return the actions on several rows, without deletion: that is refused row by row, with a reason."""
        return {name: what for name, what in super().get_actions(request).items() if name != "delete_selected"}

    def has_change_permission(self, request: HttpRequest, obj: Record | None = None) -> bool:
        """Tell whether the user may change it; presets cannot be changed."""
        return not _is_built_in(obj) and super().has_change_permission(request, obj)

    def has_delete_permission(self, request: HttpRequest, obj: Record | None = None) -> bool:
        """Tell whether the user may delete it; presets cannot be deleted."""
        return not _is_built_in(obj) and super().has_delete_permission(request, obj)

    def get_deleted_objects(self, objs: Any, request: HttpRequest) -> tuple[Any, Any, set[str], Any]:
        """Return what is deleted along; a record's own keys and lines need no permission of their own."""
        deleted, counts, _, protected = super().get_deleted_objects(objs, request)
        return deleted, counts, set(), protected

    def save_model(self, request: HttpRequest, obj: Record, form: "ModelForm[Record]", change: bool) -> None:
        """Create it, or change what was changed in the form."""
        if not change:
            self.create(request, obj, form)
            return
        changed = form.cleaned_data.items()
        changes = {name: list(value) if isinstance(value, QuerySet) else value for name, value in changed}
        edit.change(self.only(obj.pk), changes=changes, expected=frozenset({obj.version}))

    def create(self, request: HttpRequest, obj: Record, form: "ModelForm[Record]") -> None:  # noqa: ARG002 - for subclasses
        """Create it."""
        edit.create(obj)

    def delete_model(self, request: HttpRequest, obj: Record) -> None:  # noqa: ARG002 - Django's signature
        """Delete it unless something needs it."""
        edit.remove(self.only(obj.pk))

    def delete_view(self, request: HttpRequest, object_id: str, extra_context: Any = None) -> HttpResponse:
        """Ask and delete; where something still needs it, say what."""
        try:
            return super().delete_view(request, object_id, extra_context)  # type: ignore[no-any-return]
        except edit.StillInUse as refused:
            self.message_user(request, f"Not deleted. {refused}", messages.ERROR)
            return HttpResponseRedirect(self.change_url(unquote(object_id)))
        except ObjectDoesNotExist:
            self.message_user(request, "Somebody else has deleted it at this moment.", messages.WARNING)
            return HttpResponseRedirect(self.list_url())

    def each_confirmed(
        self,
        request: HttpRequest,
        chosen: QuerySet[Record],
        question: Callable[[Sequence[Record]], str],
        do: Callable[[Any], str],
        *,
        refusals: tuple[type[Exception], ...] = (),
        **button: Any,
    ) -> HttpResponse | None:
        """Ask, then `do` it to each chosen record, noting in its history what `do` returns, or why it refuses.

        Of all that a list finds, the first are asked about and done, then the next; what is not done after
        `EACH_SECONDS` is asked about again. `button`: `submit` and `variant` of the confirmation.
        """
        chosen = chosen.order_by("pk")
        if CONFIRMED in request.POST:
            asked = [int(pk) for pk in request.POST.getlist(ACTION_CHECKBOX_NAME)]
            chosen = chosen.filter(pk__gt=self._do_each(request, chosen.filter(pk__in=asked), do, refusals))
        records = [*chosen[:MAX_CHOSEN]]
        if not records:
            return None
        more = chosen.count() - len(records) if request.POST.get("select_across") == "1" else 0
        return self.confirmation(request, question(records), records, more=more, **button)

    def _do_each(
        self,
        request: HttpRequest,
        records: QuerySet[Record],
        do: Callable[[Any], str],
        refusals: tuple[type[Exception], ...],
    ) -> int:
        """Do it to each, and say for how many it was done, and for which not and why; return the last one's id."""
        not_done, stopped, last, number, until = [], "", 0, 0, monotonic() + EACH_SECONDS
        for number, record in enumerate(records, 1):
            try:
                note = do(record)
            except refusals as refused:
                note = f"Not done. {refused}"
                not_done.append(f"{record}: {refused}")
            self.log_change(request, record, note)
            last = record.pk
            if monotonic() >= until:
                stopped = f"The last was {record}: {note} {len(records) - number} are left."
                break
        done = f"Done for {number - len(not_done)}"
        shown = [f"{done}, not done for {len(not_done)}." if not_done else f"{done}.", *not_done[:MAX_REASONS]]
        if len(not_done) > MAX_REASONS:
            shown.append(f"And {len(not_done) - MAX_REASONS} more.")
        level = messages.WARNING if not_done or stopped else messages.SUCCESS
        self.message_user(request, " ".join([*shown, stopped]).strip(), level)
        return last


def _is_built_in(row: object) -> bool:
    """Tell whether a row came with the broker; unfold asks about actions with an id instead of a row."""
    return isinstance(row, Versioned) and row.is_built_in


def record_actions(
    title: str,
    explanation: str,
    do: Callable[[Any], str],
    *,
    permission: str,
    refusals: tuple[type[Exception], ...] = (),
    **options: Any,
) -> tuple[Callable[..., HttpResponse], Callable[..., HttpResponse | None]]:
    """Declare an action on one record and the same on chosen ones: both ask, then do it and note it in the history.

    `do` changes a record and returns the note; of the `refusals` it may raise, the text is shown or noted instead.
    """

    asking = dialog(f"{title}?", explanation, title)

    @action(description=title, permissions=[permission], dialog=asking, refusals=refusals, **options)
    def one(pages: ModelAdmin, request: HttpRequest, _form: object, object_id: str) -> HttpResponse:
        record = pages.only(object_id).get()
        pages.report_change(request, record, do(record))
        return after_dialog(request, pages.change_url(object_id))

    @admin.action(description=title, permissions=[permission])
    def chosen(pages: Any, request: HttpRequest, rows: QuerySet[Any]) -> HttpResponse | None:
        response: HttpResponse | None = pages.each_confirmed(
            request, rows, lambda _: f"{title} these? {explanation}", do, refusals=refusals, submit=title
        )
        return response

    return one, chosen


class PrettyJsonField(forms.JSONField):
    """JSON, shown indented; refuses what cannot be read, stored or shown again."""

    def prepare_value(self, value: Any) -> Any:
        """Return the JSON indented; invalid input as it was given."""
        if value is None or isinstance(value, InvalidJSONInput):
            return value
        return json.dumps(value, indent=2, ensure_ascii=False)

    def to_python(self, value: Any) -> Any:
        """Return the value, or say where it is invalid."""
        try:
            read = super().to_python(value)
        except forms.ValidationError as refused:
            raise forms.ValidationError(f"This is not JSON: {refused.__context__}.") from None
        except (RecursionError, ValueError):
            raise forms.ValidationError("This is nested too deeply, or has a number with too many digits.") from None
        if not _is_storable(read):
            raise forms.ValidationError("This contains NUL, half a character (\\ud800), NaN or Infinity.")
        return read

    def bound_data(self, data: Any, initial: Any) -> Any:
        """Return what the page shows again."""
        try:
            shown = super().bound_data(data, initial)
            return shown if _is_storable(shown) else InvalidJSONInput(data)
        except (RecursionError, ValueError):
            return InvalidJSONInput(data)


def _is_storable(value: Any) -> bool:
    """Tell whether PostgreSQL can store it and a page show it: it has no NUL, NaN or lone surrogate."""
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
        text.encode()
    except ValueError:
        return False
    return r"\u0000" not in text.replace(r"\\", "")


class HeadedForm(ConfiguredForm):
    """The form of a model with headers: null stands for the present value."""

    class Meta:
        field_classes = {"headers": PrettyJsonField}

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        if "headers" in self.fields:
            for_code(self.fields["headers"].widget, rows=4)

    def clean_headers(self) -> dict[str, str | None]:
        """Return the headers as they are given; refuse null for a header without a readable value."""
        given: dict[str, str | None] = {} if self.cleaned_data["headers"] is None else self.cleaned_data["headers"]
        if "headers" in self.changed_data:
            with_values_kept(given, self.instance.readable_headers)
        return given


def _set_status(status: Status, record: Any) -> str:
    edit.change(type(record).objects.filter(pk=record.pk), changes={"status": status})
    return f"The status is now {status}."


class SwitchedAdmin(ConfiguredAdmin[Record]):
    """A model with headers, and a status that only people change (contract 1.6, 1.7)."""

    form = HeadedForm
    formfield_overrides = {EncryptedHeaders: {"widget": UnfoldAdminTextareaWidget}}
    actions: ClassVar[tuple[str, ...]] = ("activate_chosen", "inactivate_chosen")
    actions_detail: ClassVar[tuple[Any, ...]] = ("activate", "inactivate")

    status_label = state_column("status", lambda record: Status(record.status), ACTIVATION_COLOURS, ordering="status")
    header_names = column("headers", lambda record: ", ".join(record.header_names or ()))
    must_be_set_again = column(
        "must be set again",
        lambda record: (
            f"{' and '.join(name.replace('_', ' ') for name in record.unreadable)}: encrypted under a secret key that"
            " the broker no longer has. Nothing is sent until you set a new value."
        ),
    )

    activate, activate_chosen = record_actions(
        "Activate",
        ACTIVATING,
        partial(_set_status, Status.ACTIVE),
        permission="change",
        icon="play_arrow",
        variant=ActionVariant.SUCCESS,
        offered=lambda record: record.status != Status.ACTIVE,
    )

    @action(
        description=INACTIVATE,
        permissions=["change"],
        icon="block",
        variant=ActionVariant.DANGER,
        offered=lambda record: record.status == Status.ACTIVE,
    )
    def inactivate(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Ask, saying what is lost by it, then make it INACTIVE."""
        record, back = self.only(object_id).get(), self.change_url(object_id)
        if CONFIRMED not in request.POST:
            question = self.inactivating([record])
            return self.confirmation(request, question, [record], back=back, **INACTIVATE_BUTTON)
        self.report_change(request, record, _set_status(Status.INACTIVE, record))
        return HttpResponseRedirect(back)

    @admin.action(description=INACTIVATE, permissions=["change"])
    def inactivate_chosen(self, request: HttpRequest, chosen: QuerySet[Record]) -> HttpResponse | None:
        """Ask, saying what is lost by it, then make these INACTIVE."""
        do = partial(_set_status, Status.INACTIVE)
        return self.each_confirmed(request, chosen, self.inactivating, do, **INACTIVATE_BUTTON)

    def inactivating(self, chosen: Sequence[Record]) -> str:  # noqa: ARG002 - for subclasses
        """Return what is asked before these are made INACTIVE."""
        return INACTIVATING

    def get_fieldsets(self, request: HttpRequest, obj: Record | None = None) -> list[Any]:
        """Return the sections; users who may not change it see the names of headers instead of their field."""
        sections = super().get_fieldsets(request, obj)
        if obj is None or self.has_change_permission(request, obj):
            return sections
        return [
            (title, {"fields": ["header_names" if name == "headers" else name for name in section["fields"]]})
            for title, section in sections
        ]

    def get_readonly_fields(self, request: HttpRequest, obj: Record | None = None) -> tuple[str, ...]:
        """Return the status too, which has its own actions, and what can no longer be decrypted."""
        if obj is None:
            return super().get_readonly_fields(request, obj)
        unreadable = ("must_be_set_again",) if isinstance(obj, WithHeaders) and obj.unreadable else ()
        return (*super().get_readonly_fields(request, obj), "status", *unreadable)
