"""All that comes from unfold, so that another theme means another module."""

from collections.abc import Callable, Iterable, Sequence
from functools import wraps
from typing import Any, TypeVar, cast

from django.contrib import admin
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.core.exceptions import BadRequest, PermissionDenied
from django.db.models import QuerySet
from django.forms import Widget
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.loader import render_to_string
from django.urls import reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString
from unfold import admin as unfolded
from unfold import decorators
from unfold.contrib.filters import admin as filters
from unfold.contrib.filters.forms import AutocompleteDropdownForm
from unfold.enums import ActionVariant as ActionVariant
from unfold.forms import AdminPasswordChangeForm as AdminPasswordChangeForm
from unfold.forms import UserChangeForm as UserChangeForm
from unfold.forms import UserCreationForm as UserCreationForm
from unfold.widgets import UnfoldAdminCheckboxSelectMultipleWidget as UnfoldAdminCheckboxSelectMultipleWidget
from unfold.widgets import UnfoldAdminIntegerFieldWidget as UnfoldAdminIntegerFieldWidget
from unfold.widgets import UnfoldAdminPasswordWidget as UnfoldAdminPasswordWidget
from unfold.widgets import UnfoldAdminSelectWidget as UnfoldAdminSelectWidget
from unfold.widgets import UnfoldAdminTextareaWidget as UnfoldAdminTextareaWidget
from unfold.widgets import UnfoldAdminTextInputWidget as UnfoldAdminTextInputWidget

from broker_project.core.admin.row_ids import AutocompleteSelect, AutocompleteSelectMultiple, could_be_of, of_existing

Method = TypeVar("Method", bound=Callable[..., Any])

STATUS_COLOURS = {"ACTIVE": "success", "INACTIVE": "warning"}
"""Beside the word itself, never instead of it."""


class ModelAdmin(unfolded.ModelAdmin):  # type: ignore[misc]
    """One model's pages, on which an id that can be no row's is an id that is not found.

    A list does what it offers and is narrowed by what it offers: an action that the user may not take is refused, and
    so is a condition of one's own, by which a list would tell, letter by letter, what no page shows.
    """

    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> HttpResponse:
        """Show the list, or do what is asked for with some of it, if the user may."""
        if not set(request.POST.getlist("action")) <= {"", *self.get_actions(request)}:
            raise PermissionDenied
        if any("\0" in value for values in request.GET.lists() for value in values[1]):
            raise BadRequest  # PostgreSQL would refuse it
        return super().changelist_view(request, extra_context)  # type: ignore[no-any-return]

    def lookup_allowed(self, lookup: str, value: str, request: HttpRequest) -> bool:
        """Tell whether a list may be narrowed so: by one of its filters."""
        offered = {_parameter_of(one) for one in self.get_list_filter(request)}
        return any(lookup == one or lookup.startswith(f"{one}__") for one in offered) and super().lookup_allowed(
            lookup, value, request
        )

    def changeform_view(
        self, request: HttpRequest, object_id: str | None = None, form_url: str = "", extra_context: Any = None
    ) -> HttpResponse:
        """Show and save the form; without asking which actions there are of what cannot exist."""
        if object_id is not None and not could_be_of(self.model, object_id):
            return admin.ModelAdmin.changeform_view(self, request, object_id, form_url, extra_context)
        return super().changeform_view(request, object_id, form_url, extra_context)  # type: ignore[no-any-return]

    def response_action(self, request: HttpRequest, queryset: "QuerySet[Any]") -> HttpResponse | None:
        """Do what is asked for with what was chosen in a list, if that can exist."""
        if not all(could_be_of(self.model, chosen) for chosen in request.POST.getlist(ACTION_CHECKBOX_NAME)):
            raise BadRequest
        return super().response_action(request, queryset)  # type: ignore[no-any-return]

    def formfield_for_foreignkey(self, db_field: Any, request: HttpRequest, **options: Any) -> Any:
        """Return the form's field for a link to one."""
        if db_field.name in self.get_autocomplete_fields(request):
            options.setdefault("widget", AutocompleteSelect(db_field, self.admin_site))
        return super().formfield_for_foreignkey(db_field, request, **options)

    def formfield_for_manytomany(self, db_field: Any, request: HttpRequest, **options: Any) -> Any:
        """Return the form's field for links to many."""
        if db_field.name in self.get_autocomplete_fields(request):
            options.setdefault("widget", AutocompleteSelectMultiple(db_field, self.admin_site))
        return super().formfield_for_manytomany(db_field, request, **options)


def _parameter_of(list_filter: Any) -> str:
    """Return by which parameter, or the beginning of which, a filter is chosen."""
    if isinstance(list_filter, str):
        return list_filter
    name = list_filter[0] if isinstance(list_filter, tuple) else list_filter.parameter_name
    return str(name)


class AutocompleteForm(AutocompleteDropdownForm):  # type: ignore[misc]
    """The form of a filter."""

    widget = AutocompleteSelect


class AutocompleteSelectFilter(filters.AutocompleteSelectFilter):  # type: ignore[misc]
    """Rows that link to one that is found by what is typed."""

    form_class = AutocompleteForm


def action(**options: Any) -> Callable[[Method], Method]:
    """Return unfold's decorator of an action, which finds nothing where there is no such row."""
    decorate: Callable[[Method], Method] = decorators.action(**options)
    if "dialog" in options:
        return lambda method: _opened_within_page(decorate(of_existing(method)))
    return lambda method: decorate(of_existing(method))


def _opened_within_page(method: Method) -> Method:
    """Return an action whose dialog, opened anywhere but in a page, leads to the page that it belongs to."""

    @wraps(method)
    def answer(admin: ModelAdmin, request: HttpRequest, **named: Any) -> HttpResponse:
        if request.method != "GET" or "HX-Request" in request.headers:
            return cast("HttpResponse", method(admin, request, **named))
        page = "change" if named else "changelist"
        return HttpResponseRedirect(
            reverse(f"admin:{admin.opts.app_label}_{admin.opts.model_name}_{page}", kwargs=named)
        )

    return cast("Method", answer)


def display(**options: Any) -> Callable[[Method], Method]:
    """Return unfold's decorator of what a list or page shows."""
    decorate: Callable[[Method], Method] = decorators.display(**options)
    return decorate


def page_of(admin: ModelAdmin, title: str) -> dict[str, object]:
    """Return what a page of a model's own needs, so that its way there ends with its title."""
    return {"title": title, "content_title": title, "model_admin": admin}


def dialog(title: str, description: str, submit: str) -> dict[str, str]:
    """Return the confirmation that an action opens; only its POST runs the action."""
    return {"title": title, "description": description, "form_submit_text": submit}


def after_dialog(request: HttpRequest, url: str) -> HttpResponse:
    """Return the answer that leads to `url`, from a dialog in the page or from one opened on its own."""
    if "HX-Request" in request.headers:
        return HttpResponse(headers={"HX-Redirect": url})
    return HttpResponseRedirect(url)


def table(headers: Sequence[str], rows: Iterable[Sequence[object]]) -> SafeString:
    """Return a table; every cell is escaped unless it was made by `format_html`."""
    context = {"table": {"headers": list(headers), "rows": [list(row) for row in rows]}}
    return render_to_string("unfold/components/table.html", context)


def label(text: str, colour: str) -> SafeString:
    """Return a word on a colour: `success`, `warning`, `danger` or `info`."""
    return render_to_string("unfold/helpers/label.html", {"text": text, "type": colour})


def progress(percent: int, text: str) -> SafeString:
    """Return a bar that is filled so far, under a text that says it too."""
    context = {"title": text, "items": [{"value": percent}]}
    bar = render_to_string("unfold/components/progress.html", context)
    return format_html('<div style="min-width: 9rem; max-width: 24rem">{}</div>', bar)


def for_code(widget: Widget) -> None:
    """Make a widget one in which programs are written: every character as wide as the others, nothing corrected."""
    widget.attrs |= {"style": "font-family: monospace", "spellcheck": "false", "autocapitalize": "off"}


def link(url: str, text: object) -> SafeString:
    """Return a link."""
    return format_html('<a class="text-primary-600 dark:text-primary-500" href="{}">{}</a>', url, text)


def preformatted(text: str) -> SafeString:
    """Return `text` as it is, escaped."""
    style = "white-space: pre-wrap; overflow-wrap: anywhere; max-height: 40rem; overflow-y: auto"
    return format_html('<pre class="font-mono text-xs" style="{}">{}</pre>', style, text)
