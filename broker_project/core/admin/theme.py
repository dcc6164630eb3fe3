"""Widgets, forms and pieces of HTML of the admin theme (unfold): another theme means another module."""

import datetime as dt
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from django.db.models import Choices
from django.forms import Widget
from django.template.loader import render_to_string
from django.utils import timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString
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

from broker_project.core.durations import rough

CODE: Final = {"style": "font-family: monospace", "spellcheck": "false", "autocapitalize": "off"}
"""Attributes of a widget for programs and JSON: monospaced, nothing corrected."""


def for_code(widget: Widget, **attributes: int) -> None:
    """Make a widget one for programs or JSON, with more attributes such as `rows`."""
    widget.attrs |= {**CODE, **attributes}


def table(headers: Sequence[str], rows: Iterable[Sequence[object]]) -> SafeString:
    """Return a table; every cell is escaped unless it was made by `format_html`."""
    context = {"table": {"headers": list(headers), "rows": [list(row) for row in rows]}}
    return render_to_string("unfold/components/table.html", context)


def table_or_dash(headers: Sequence[str], rows: Sequence[Sequence[object]]) -> SafeString | str:
    """Return a table, or a dash without rows."""
    return table(headers, rows) if rows else "-"


def compact_table(headers: Sequence[str], rows: Iterable[Sequence[object]]) -> SafeString:
    """Return a table of names and numbers, which keeps its rows where there is little room."""
    return render_to_string("broker_project/compact_table.html", {"heads": headers, "rows": rows})


def label(text: str, colour: str) -> SafeString:
    """Return a word on a colour: `success`, `warning`, `danger` or `info`."""
    return render_to_string("unfold/helpers/label.html", {"text": text, "type": colour, "class": "badge"})


def badge(state: Choices, colours: Mapping[Any, str]) -> SafeString:
    """Return the word of a state on its colour, with its hint, or the API's name for it, as tooltip."""
    name = str(state.value)
    title = getattr(state, "hint", name)
    context = {"text": state.label, "type": colours.get(name, "info"), "label_title": title, "class": "badge"}
    return render_to_string("unfold/helpers/label.html", context)


def progress(percent: int, text: str) -> SafeString:
    """Return a bar that is filled to `percent`, under a text that says the same."""
    context = {"title": text, "items": [{"value": percent}]}
    bar = render_to_string("unfold/components/progress.html", context)
    return format_html('<div style="min-width: 9rem; max-width: 24rem">{}</div>', bar)


def refreshed(content: SafeString, url: str | None) -> SafeString:
    """Return what its page, at this address, refreshes every ten seconds; without an address it stays as it is."""
    live = format_html('<div id="live">{}</div>', content)
    page = {"request": {"get_full_path": url}}
    return live + render_to_string("broker_project/refresh.html", page) if url else live


def link(url: str, text: object) -> SafeString:
    """Return a link."""
    return format_html('<a class="text-primary-600 dark:text-primary-500" href="{}">{}</a>', url, text)


def copyable(text: object, what: str) -> SafeString:
    """Return a text with a button that copies it; screen readers say `what` it is, such as `id`."""
    return format_html('<span data-copy="{}">{}</span>', what, text)


def relative(at: dt.datetime | None, now: dt.datetime | None = None) -> SafeString | str:
    """Return how long ago or ahead an instant is, with the instant as its tooltip; a dash for None."""
    if at is None:
        return "-"
    ago = ((now or timezone.now()) - at).total_seconds()
    text = f"{rough(ago)} ago" if ago >= 0 else f"in {rough(-ago)}"
    exact = f"{timezone.localtime(at):%Y-%m-%d %H:%M:%S} UTC"
    return format_html(
        '<time class="whitespace-nowrap" datetime="{}" title="{}">{}</time>', at.isoformat(), exact, text
    )


def preformatted(text: str) -> SafeString:
    """Return `text` with its line ends and spaces, escaped."""
    style = "white-space: pre-wrap; overflow-wrap: anywhere; max-height: 40rem; overflow-y: auto"
    return format_html('<pre class="font-mono text-xs" style="{}">{}</pre>', style, text)
