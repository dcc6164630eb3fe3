"""All that comes from unfold, so that another theme means another module."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from django.forms import Widget
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.loader import render_to_string
from django.utils.html import format_html
from django.utils.safestring import SafeString, mark_safe
from unfold import decorators
from unfold.admin import ModelAdmin as ModelAdmin
from unfold.contrib.filters.admin import AutocompleteSelectFilter as AutocompleteSelectFilter
from unfold.enums import ActionVariant as ActionVariant
from unfold.forms import AdminPasswordChangeForm as AdminPasswordChangeForm
from unfold.forms import UserChangeForm as UserChangeForm
from unfold.forms import UserCreationForm as UserCreationForm
from unfold.widgets import UnfoldAdminCheckboxSelectMultipleWidget as UnfoldAdminCheckboxSelectMultipleWidget
from unfold.widgets import UnfoldAdminIntegerFieldWidget as UnfoldAdminIntegerFieldWidget
from unfold.widgets import UnfoldAdminSelectWidget as UnfoldAdminSelectWidget
from unfold.widgets import UnfoldAdminTextareaWidget as UnfoldAdminTextareaWidget
from unfold.widgets import UnfoldAdminTextInputWidget as UnfoldAdminTextInputWidget

Method = TypeVar("Method", bound=Callable[..., Any])

STATUS_COLOURS = {"ACTIVE": "success", "INACTIVE": "warning"}
"""Beside the word itself, never instead of it."""


def action(**options: Any) -> Callable[[Method], Method]:
    """Return unfold's decorator of an action."""
    decorate: Callable[[Method], Method] = decorators.action(**options)
    return decorate


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
    return mark_safe(render_to_string("unfold/components/table.html", context))  # noqa: S308 - a template escapes


def label(text: str, colour: str) -> SafeString:
    """Return a word on a colour: `success`, `warning`, `danger` or `info`."""
    return mark_safe(render_to_string("unfold/helpers/label.html", {"text": text, "type": colour}))  # noqa: S308


def progress(percent: int, text: str) -> SafeString:
    """Return a bar that is filled so far, under a text that says it too."""
    context = {"title": text, "items": [{"value": percent}]}
    bar = render_to_string("unfold/components/progress.html", context)
    return format_html('<div style="min-width: 9rem; max-width: 24rem">{}</div>', mark_safe(bar))  # noqa: S308


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
