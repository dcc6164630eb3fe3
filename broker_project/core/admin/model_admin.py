"""The base of all admin pages: columns, filters and actions declared as tables, confirmation pages, unknown ids.

An action asks first, and runs by POST only. It says which permission it takes, and for which rows it does something.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial, wraps
from typing import Any, ClassVar, Final, Generic, TypeVar, cast

from django.contrib import admin, messages
from django.contrib.admin import widgets
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.admin.options import IncorrectLookupParameters
from django.contrib.admin.views.main import ChangeList
from django.core.exceptions import (
    BadRequest,
    FieldDoesNotExist,
    ObjectDoesNotExist,
    PermissionDenied,
    ValidationError,
)
from django.db import IntegrityError
from django.db.models import PROTECT, Choices, DateTimeField, Model, QuerySet
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils.text import capfirst
from psycopg.errors import ForeignKeyViolation
from unfold import admin as unfolded
from unfold import decorators
from unfold.contrib.filters import admin as filters
from unfold.contrib.filters.forms import AutocompleteDropdownForm
from unfold.enums import ActionVariant

from broker_project.core.admin.lists import ListPage
from broker_project.core.admin.theme import badge, relative

Method = TypeVar("Method", bound=Callable[..., Any])
Row = TypeVar("Row", bound=Model)
Value = TypeVar("Value")

MAX_PROTECTING: Final = 100
"""What prevents a deletion, as much of it as a page lists."""
MAX_CHOSEN: Final = 500
"""Rows that one confirmation is about: a form has at most 1,000 fields."""
CONFIRMED: Final = "confirmed"
"""The field of a confirmation page that says yes."""


def column(title: str, read: Callable[[Any], object], **options: Any) -> Callable[[Any, Any], object]:
    """Declare a column of a list or a field of a page: its title, and what it shows of a row.

    Options are those of unfold's `display`: `ordering`, `empty_value`, `boolean`.
    """

    def show(_admin: object, row: Any) -> object:
        shown = vars(row).setdefault("_shown", {})  # templates ask several times for what a page shows once
        if read not in shown:
            shown[read] = read(row)
        return shown[read]

    return cast("Callable[[Any, Any], object]", decorators.display(description=title, **options)(show))


def state_column(
    title: str, read: Callable[[Any], Choices], colours: Mapping[Any, str], **options: Any
) -> Callable[[Any, Any], object]:
    """Declare a column that shows a state as its badge."""
    return column(title, lambda row: badge(read(row), colours), **options)


def permission(name: str) -> Callable[..., bool]:
    """Declare a `has_…_permission` method: the user has this permission, for whichever row.

    Actions name the method and not the permission, which unfold would look up in the database at every system check.
    """

    def has_permission(_admin: object, request: HttpRequest, _object_id: object = None) -> bool:
        return request.user.has_perm(name)

    return has_permission


def never(*_: object, **__: object) -> bool:
    """Declare a permission method that allows nobody."""
    return False


def superusers_only(_admin: object, request: HttpRequest, *_: object, **__: object) -> bool:
    """Declare a permission method that allows superusers."""
    return bool(request.user.is_superuser)


def action(
    *,
    offered: Callable[[Any], object] = lambda _: True,
    refusals: tuple[type[Exception], ...] = (),
    **options: Any,
) -> Callable[[Method], Method]:
    """Declare an action on a row, or on none; 404 for an unknown row.

    `offered` tells from the row whether the action does anything now; without it, it always does. The text of
    `refusals` that it raises is shown on the row's page. A `dialog` opened outside its page leads to that page.
    """
    decorate: Callable[[Method], Method] = decorators.action(**options)

    def declared(method: Method) -> Method:
        @wraps(method)
        def known(admin: Any, *args: Any, **named: Any) -> Any:
            if "object_id" in named and not admin.only(named["object_id"]).exists():
                raise Http404
            try:
                return method(admin, *args, **named)
            except refusals as refused:
                admin.message_user(args[0], str(refused), messages.WARNING)
                return after_dialog(args[0], admin.change_url(named["object_id"]))

        decorated: Any = decorate(cast("Method", known))
        if "dialog" in options:
            decorated = _opened_within_page(decorated)
        decorated.offered = offered
        return cast("Method", decorated)

    return declared


def _opened_within_page(method: Callable[..., HttpResponse]) -> Callable[..., HttpResponse]:
    @wraps(method)
    def answer(admin: "ModelAdmin", request: HttpRequest, **named: Any) -> HttpResponse:
        if request.method != "GET" or "HX-Request" in request.headers:
            return method(admin, request, **named)
        return HttpResponseRedirect(admin.change_url(named["object_id"]) if named else admin.list_url())

    return answer


def dialog(title: str, description: str, submit: str, *, variant: ActionVariant = ActionVariant.PRIMARY) -> Any:
    """Return the confirmation that an action opens; only its POST runs the action.

    `submit` says what its button does, such as `Cancel replay`; the other one goes back.
    """
    return {"title": title, "description": description, "form_submit_text": submit, "variant": variant.value}


def after_dialog(request: HttpRequest, url: str) -> HttpResponse:
    """Return the answer that leads to `url`, from a dialog in the page or from one opened on its own."""
    if "HX-Request" in request.headers:
        return HttpResponse(headers={"HX-Redirect": url})
    return HttpResponseRedirect(url)


@contextmanager
def references_checked() -> Iterator[None]:
    """Raise `ValidationError` if what a transaction has stored refers to a row that others have deleted meanwhile.

    Foreign keys are checked at the end of the outermost transaction, so this is around it.
    """
    try:
        yield
    except IntegrityError as broken:
        if not isinstance(broken.__cause__, ForeignKeyViolation):
            raise
        raise ValidationError("Something that it refers to was deleted.") from broken


class Prefetched(Generic[Row, Value]):
    """What a page shows of rows beyond their columns: read for all rows of a list at once, or for the row of a page."""

    def __init__(self, name: str, read: Callable[[Sequence[Row]], Mapping[Any, Value]]) -> None:
        self._name, self._read = f"_prefetched_{name}", read

    def load(self, rows: Iterable[Row]) -> None:
        """Read it for all of the rows."""
        rows = [*rows]
        found = self._read(rows)
        for row in rows:
            vars(row)[self._name] = found.get(row.pk)

    def of(self, row: Row) -> Value:
        """Return it for one row."""
        if self._name not in vars(row):
            self.load([row])
        return cast("Value", vars(row)[self._name])


def could_be_of(model: type[Model], given: object) -> bool:
    """Tell whether a row of `model` could have this id."""
    try:
        model._meta.pk.to_python(given)  # noqa: SLF001 - documented by Django
    except ValidationError:
        return False
    return True


class _ValidIdsOnly(widgets.AutocompleteMixin):
    """Show the chosen rows that exist; the form reports the others."""

    def optgroups(self, name: str, value: Any, attr: Any = None) -> Any:
        model = self.field.remote_field.model
        known = [one for one in value if one in self.choices.field.empty_values or could_be_of(model, one)]
        return super().optgroups(name, known, attr)


class AutocompleteSelect(_ValidIdsOnly, widgets.AutocompleteSelect):
    """One row, found by typing."""


class AutocompleteSelectMultiple(_ValidIdsOnly, widgets.AutocompleteSelectMultiple):
    """Several rows, found by typing."""


class _AutocompleteForm(AutocompleteDropdownForm):  # type: ignore[misc]
    widget = AutocompleteSelect

    class Media(AutocompleteDropdownForm.Media):  # type: ignore[misc]
        js = (*AutocompleteDropdownForm.Media.js, "broker_project/list_filters.js")


class AutocompleteSelectFilter(filters.AutocompleteSelectFilter):  # type: ignore[misc]
    """Rows that link to a row found by typing; choosing one filters at once."""

    form_class = _AutocompleteForm


class ModelAdmin(unfolded.ModelAdmin):  # type: ignore[misc]
    """One model's pages.

    An id that no row can have is answered like one that no row has. A list refuses actions that the user may not take,
    and conditions that are not among its filters: by those a list would reveal, letter by letter, what no page shows.
    """

    list_before_template = "broker_project/chips.html"
    when_empty: ClassVar[str]
    """What a list without rows says: what would be in it, and what to do."""
    conflicts: ClassVar[tuple[type[Exception], ...]] = (ValidationError,)
    """What saving raises because of a change that others made after the form was checked."""
    not_read_for_actions: ClassVar[tuple[str, ...]] = ()
    """Large columns that say nothing about which actions a row offers."""

    def get_changelist(self, request: HttpRequest, **_: object) -> type[ListPage]:  # noqa: ARG002 - Django's signature
        """Return what reads a page of the list."""
        return ListPage

    def get_list_display(self, request: HttpRequest) -> list[Any]:
        """Return the columns; times are relative, with the exact one as tooltip."""
        return [self._relative(name) for name in super().get_list_display(request)]

    def _relative(self, name: Any) -> Any:
        try:
            field = self.opts.get_field(name) if isinstance(name, str) else None
        except FieldDoesNotExist:
            return name
        if not isinstance(field, DateTimeField):
            return name

        @decorators.display(description=field.verbose_name, ordering=name)  # type: ignore[untyped-decorator]
        def shown(row: Model) -> object:
            return relative(getattr(row, field.name))

        return shown

    def get_actions_detail(self, request: HttpRequest, object_id: int) -> list[Any]:
        """Return the actions of a row's page that the user may take and that do something now."""
        allowed = super().get_actions_detail(request, object_id)
        row = self.only(object_id).defer(*self.not_read_for_actions).first() if allowed else None
        return [one for one in allowed if row is not None and one.method.offered(row)]

    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> HttpResponse:
        """Show the list, or run an action on chosen rows, if the user may."""
        if not set(request.POST.getlist("action")) <= {"", *self.get_actions(request)}:
            raise PermissionDenied
        title = capfirst(str(self.opts.verbose_name_plural))
        return super().changelist_view(request, {"title": title, **(extra_context or {})})  # type: ignore[no-any-return]

    def get_changelist_instance(self, request: HttpRequest) -> ChangeList:
        """Return the list, narrowed as its address says; what it says wrongly is told on the page that follows."""
        if any("\0" in value for values in request.GET.lists() for value in values[1]):
            raise BadRequest  # PostgreSQL would refuse it
        try:
            return super().get_changelist_instance(request)  # type: ignore[no-any-return]
        except IncorrectLookupParameters as wrong:
            told = wrong.args[0] if wrong.args and isinstance(wrong.args[0], str) else "No row can be what it asks for."
            self.message_user(request, f"The list is not narrowed. {told}", messages.ERROR)
            raise

    def lookup_allowed(self, lookup: str, value: str, request: HttpRequest) -> bool:
        """Tell whether a condition is among the list's filters."""
        for offered in self.get_list_filter(request):
            if lookup in getattr(offered, "names", ()):
                return True
            field = offered[0] if isinstance(offered, tuple) else getattr(offered, "parameter_name", offered)
            if lookup == field or lookup.startswith(f"{field}__"):
                return bool(super().lookup_allowed(lookup, value, request))
        return False

    def changeform_view(
        self, request: HttpRequest, object_id: str | None = None, form_url: str = "", extra_context: Any = None
    ) -> HttpResponse:
        """Show and save the form; report a conflict with what others saved at the same moment.

        For an id that no row can have, it is not asked which actions there are.
        """
        is_possible = object_id is None or could_be_of(self.model, object_id)
        show = super().changeform_view if is_possible else partial(admin.ModelAdmin.changeform_view, self)
        try:
            with references_checked():
                return cast("HttpResponse", show(request, object_id, form_url, extra_context))
        except self.conflicts as refused:
            gone = "It was deleted." if isinstance(refused, ObjectDoesNotExist) else str(refused)
            why = " ".join(refused.messages) if isinstance(refused, ValidationError) else gone
            self.message_user(request, f"Not saved, because of a change made meanwhile: {why}", messages.ERROR)
            return HttpResponseRedirect(request.get_full_path())

    def response_action(self, request: HttpRequest, queryset: "QuerySet[Any]") -> HttpResponse | None:
        """Run an action on the chosen rows; 400 for an id that no row can have."""
        if not all(could_be_of(self.model, chosen) for chosen in request.POST.getlist(ACTION_CHECKBOX_NAME)):
            raise BadRequest
        return super().response_action(request, queryset)  # type: ignore[no-any-return]

    def get_deleted_objects(self, objs: Any, request: HttpRequest) -> Any:
        """Return what is deleted along; or what prevents it, as much as a page shows: there may be thousands."""
        protecting = [one for relation in self.opts.related_objects for one in self._protecting(relation, objs)]
        return ([], {}, set(), protecting) if protecting else super().get_deleted_objects(objs, request)

    def _protecting(self, relation: Any, rows: Any) -> list[object]:
        if relation.on_delete is not PROTECT:
            return []
        model = relation.related_model
        links = [field.name for field in model._meta.fields if field.is_relation]  # noqa: SLF001 - documented by Django
        found = model._default_manager.filter(**{f"{relation.field.name}__in": rows}).select_related(*links)  # noqa: SLF001
        shown = [f"{capfirst(model._meta.verbose_name)}: {one}" for one in found[: MAX_PROTECTING + 1]]  # noqa: SLF001
        return [*shown[:MAX_PROTECTING], "and more"] if len(shown) > MAX_PROTECTING else [*shown]

    def formfield_for_dbfield(self, db_field: Any, request: HttpRequest, **options: Any) -> Any:
        """Return the form's field."""
        if db_field.name in self.get_autocomplete_fields(request):
            widget = AutocompleteSelectMultiple if db_field.many_to_many else AutocompleteSelect
            options.setdefault("widget", widget(db_field, self.admin_site))
        return super().formfield_for_dbfield(db_field, request, **options)

    def only(self, pk: object) -> "QuerySet[Any]":
        """Return the row of this id as a query set, empty for an id that no row can have."""
        rows: QuerySet[Any] = self.model._default_manager.all()  # noqa: SLF001 - documented by Django
        return rows.filter(pk=pk) if could_be_of(self.model, pk) else rows.none()

    def change_url(self, pk: object) -> str:
        """Return the address of a row's page."""
        return reverse(f"admin:{self.opts.app_label}_{self.opts.model_name}_change", args=[pk])

    def list_url(self) -> str:
        """Return the address of the list."""
        return reverse(f"admin:{self.opts.app_label}_{self.opts.model_name}_changelist")

    def page(self, request: HttpRequest, template: str, title: str, **context: object) -> HttpResponse:
        """Return a page below this model's pages; the breadcrumbs end with its title."""
        context = {"title": title, "content_title": title, "model_admin": self, **context}
        return TemplateResponse(request, template, {**self.admin_site.each_context(request), **context})

    def confirmation(
        self,
        request: HttpRequest,
        question: str,
        chosen: Iterable[object],
        *,
        submit: str,
        variant: ActionVariant = ActionVariant.PRIMARY,
        back: str = "",
        form: object = None,
        more: int = 0,
    ) -> HttpResponse:
        """Return the page that asks before an action runs; the answer yes comes as POST with `CONFIRMED`.

        `submit` says what its button does, such as `Cancel deliveries`; the other one goes back. `more` of what the
        list finds is asked about after these.
        """
        if more:
            question = f"{question} You are asked about {more:,} more afterwards."
        context = {
            **self.admin_site.each_context(request),
            "title": question,
            "chosen": chosen,
            "action": request.POST.get("action", ""),
            "checkbox": ACTION_CHECKBOX_NAME,
            "confirmed": CONFIRMED,
            "more": more,
            "back": back,
            "submit_text": submit,
            "variant": variant.value,
            "form": form,
            "opts": self.opts,
        }
        return TemplateResponse(request, "broker_project/confirm.html", context)

    def report_change(self, request: HttpRequest, row: Model, note: str) -> None:
        """Write to a row's history what was done, and say so on the next page."""
        self.log_change(request, row, note)
        self.message_user(request, note, messages.SUCCESS)
