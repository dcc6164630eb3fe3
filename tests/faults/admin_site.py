"""The admin site as a browser uses it: logs in, fills in forms as they come, confirms dialogs."""

import re
from collections.abc import Collection
from html.parser import HTMLParser
from urllib.parse import urljoin

import requests

from broker_project.stack.stacks import Stack
from tests.real_broker import TIMEOUT

ROOT = "/admin/subscriptions"


class Form(HTMLParser):
    """What the forms of a page would send if nobody touched them, but for buttons."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.fields: dict[str, str] = {}
        self._text_of = ""
        self._select = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        name = given.get("name") or ""
        if tag == "input" and given.get("type") not in {"submit", "checkbox", "file", "image", "button"} and name:
            self.fields.setdefault(name, given.get("value") or "")
        elif tag == "textarea":
            self._text_of, self.fields[name] = name, ""
        elif tag == "select":
            self._select = name
        elif tag == "option" and "selected" in given:
            self.fields[self._select] = given.get("value") or ""

    def handle_data(self, data: str) -> None:
        if self._text_of:
            self.fields[self._text_of] += data

    def handle_endtag(self, tag: str) -> None:
        if tag == "textarea":
            self.fields[self._text_of] = self.fields[self._text_of].removeprefix("\n")
            self._text_of = ""


class AdminSite:
    """A browser in which the administrator has logged in."""

    def __init__(self, stack: Stack) -> None:
        self._web = stack.web
        self._session = requests.Session()
        name, _, password = stack.admin_login.partition(":")
        self._send("/admin/login/", username=name, password=password)

    def find(self, model: str, name: str) -> str:
        """Return the record of that name, as the other methods take it."""
        page = self._session.get(f"{self._web}{ROOT}/{model}/", params={"q": name}, timeout=TIMEOUT).text
        (pk,) = set(re.findall(rf"{ROOT}/{model}/(\d+)/change/[^>]*>{name}<", page))
        return f"{model}/{pk}"

    def save(self, record: str, **changes: str) -> None:
        """Open a record's form, change that in it, and save it."""
        self._send(f"{ROOT}/{record}/change/", **changes)

    def confirm(self, record: str, action: str) -> str:
        """Do an action of a record's page; return the page that it leads to."""
        return self._send(f"{ROOT}/{record}/{action}/", _form_submitted="on")

    def shown(self, record: str, action: str, **fields: object) -> str:
        """Confirm an action of a record's page; return the page that it is answered with."""
        return self._sent(f"{ROOT}/{record}/{action}/", confirmed="yes", **fields).text

    def confirm_chosen(self, model: str, action: str, pks: Collection[int]) -> None:
        """Do an action of a list to some of it."""
        chosen = {"action": action, "_selected_action": [*pks], "confirmed": "yes"}
        self._send(f"{ROOT}/{model}/", **chosen)

    def _send(self, path: str, **fields: object) -> str:
        """Send a page's form with these fields changed; the site leads elsewhere if it took them."""
        taken = self._sent(path, **fields)
        assert taken.is_redirect, f"{path} answered {taken.status_code}: {taken.text}"
        return self._session.get(urljoin(taken.url, taken.headers["Location"]), timeout=TIMEOUT).text

    def _sent(self, path: str, **fields: object) -> requests.Response:
        page = self._session.get(self._web + path, timeout=TIMEOUT)
        page.raise_for_status()
        form = {**Form(page.text).fields, **fields}
        headers = {"Referer": self._web + path}
        return self._session.post(self._web + path, form, headers=headers, timeout=TIMEOUT, allow_redirects=False)
