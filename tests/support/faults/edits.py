"""Edit the configuration under load through the admin site, and record what was in force when."""

import json
import re
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Generic, TypeVar
from urllib.parse import urljoin

import requests

from broker_project.stack.load.exchanges import Published, is_signed
from broker_project.stack.load.receiver import Received
from broker_project.stack.running_stack import Stack
from tests.support.faults.load import Load
from tests.support.html_form import Form
from tests.support.real_broker import TIMEOUT_SECONDS

ROOT = "/admin/subscriptions"

Value = TypeVar("Value")

EDITION = "X-Edition"

SECRET = re.compile(r"whsec_[A-Za-z0-9+/=]{20,}")

Edit = Callable[[], None]


class AdminSite:
    """A browser in which the administrator has logged in."""

    def __init__(self, stack: Stack) -> None:
        self._web = stack.web
        self._session = requests.Session()
        name, _, password = stack.admin_login.partition(":")
        self._send("/admin/login/", username=name, password=password)

    def find(self, model: str, name: str) -> str:
        """Return the record of that name, as the other methods take it."""
        page = self._session.get(f"{self._web}{ROOT}/{model}/", params={"q": name}, timeout=TIMEOUT_SECONDS).text
        (pk,) = set(re.findall(rf"{ROOT}/{model}/(\d+)/[^>]*>{name}<", page))
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
        return self._session.get(urljoin(taken.url, taken.headers["Location"]), timeout=TIMEOUT_SECONDS).text

    def _sent(self, path: str, **fields: object) -> requests.Response:
        page = self._session.get(self._web + path, timeout=TIMEOUT_SECONDS)
        page.raise_for_status()
        form = {**Form(page.text).fields, **fields}
        headers = {"Referer": self._web + path}
        return self._session.post(
            self._web + path, form, headers=headers, timeout=TIMEOUT_SECONDS, allow_redirects=False
        )


@dataclass(frozen=True, slots=True)
class Setting(Generic[Value]):
    """A value and the call that set it, on the monotonic clock."""

    value: Value
    begun: float
    ended: float


@dataclass(slots=True)
class SettingHistory(Generic[Value]):
    """A setting through time; while a call changes it, either value may be in force."""

    first: Value
    _later: list[Setting[Value]] = field(default_factory=list)

    @property
    def now(self) -> Value:
        return self._later[-1].value if self._later else self.first

    @contextmanager
    def changing(self, value: Value) -> Iterator[None]:
        """Note that this is set meanwhile."""
        begun = time.monotonic()
        yield
        self._later.append(Setting(value, begun, time.monotonic()))

    def has_become(self, value: Value, *, since: float) -> None:
        """Note that this was set by a call that began then and has ended now."""
        self._later.append(Setting(value, since, time.monotonic()))

    def between(self, begun: float, ended: float) -> set[Value]:
        """Return every value that may have been in force at some time between these two."""
        always = float("inf")
        settings = [Setting(self.first, -always, -always), *self._later, Setting(self.now, always, always)]
        return {one.value for one, following in pairwise(settings) if one.begun <= ended and begun <= following.ended}


@dataclass(slots=True)
class EditedSubscription:
    """One subscription through time."""

    id: int
    address: SettingHistory[str]
    edition: SettingHistory[str]
    """Value of a header."""
    secret: SettingHistory[str]
    is_active: SettingHistory[bool] = field(default_factory=lambda: SettingHistory(first=True))

    @property
    def record(self) -> str:
        """As the admin site names it."""
        return f"subscription/{self.id}"

    def may_have_sent(self, request: Received, address: str, then: tuple[float, float]) -> bool:
        """Return whether address, header and signature were in force at some time then."""
        return (
            address in self.address.between(*then)
            and request.headers.get(EDITION.lower(), "") in self.edition.between(*then)
            and any(is_signed(request.headers, request.body, secret) for secret in self.secret.between(*then))
        )


class Admins:
    """Edits a subscriber with two subscriptions through the API and the admin site."""

    def __init__(self, load: Load, name: str, secrets: dict[str, str], addresses: tuple[str, str]) -> None:
        self.name = name
        self.is_active = SettingHistory(first=True)
        self.subscriptions = {
            event_type: EditedSubscription(
                load.broker.subscription(name, event_type=event_type)["id"],
                SettingHistory(addresses[0]),
                SettingHistory(""),
                SettingHistory(secret),
            )
            for event_type, secret in secrets.items()
        }
        self._api = load.broker.management
        self._addresses = addresses
        self._site = AdminSite(load.broker.stack)
        self._record = self._site.find("subscriber", name)
        self._editions = 0

    def edits(self) -> Iterator[Edit]:
        """Return one round of edits, each to be made a moment after the other; at the end all is active again."""
        one, other = self.subscriptions.values()
        yield lambda: self.move_by_api(one)
        yield lambda: self.edit_form(other)
        yield lambda: self.switch_by_api(one, active=False)
        yield lambda: self.rotate_by_api(other)
        yield lambda: self.switch_by_api(one, active=True)
        yield lambda: self.edit_subscriber(max_queued_to_send="1")
        yield lambda: self.rotate_on_page(one)
        yield lambda: self.switch_subscriber_in_dialog(active=False)
        yield lambda: self.edit_form(one)
        yield lambda: self.switch_subscriber_in_dialog(active=True)
        yield lambda: self.rename(f"{self.name}-renamed")
        yield lambda: self.switch_both_in_list(active=False)
        yield lambda: self.rename(self.name.removesuffix("-renamed"))
        yield lambda: self.switch_both_in_list(active=True)
        yield lambda: self.edit_subscriber(max_queued_to_send="10000", description="All of it.")
        yield lambda: self.move_by_api(other)

    # --- single edits ---------------------------------------------------------

    def move_by_api(self, one: EditedSubscription) -> None:
        with one.address.changing(self._elsewhere(one)):
            self._api.change(f"subscriptions/{one.id}", endpoint=self._elsewhere(one))

    def edit_form(self, one: EditedSubscription) -> None:
        """Change endpoint and headers at once."""
        address, edition = self._elsewhere(one), self._next_edition()
        with one.address.changing(address), one.edition.changing(edition):
            self._site.save(one.record, endpoint=address, headers=json.dumps({EDITION: edition}))

    def rotate_by_api(self, one: EditedSubscription) -> None:
        begun = time.monotonic()
        answered = self._api.create(f"subscriptions/{one.id}/rotate-secret", overlap_seconds=0)
        one.secret.has_become(answered["signing_secret"], since=begun)

    def rotate_on_page(self, one: EditedSubscription) -> None:
        begun = time.monotonic()
        (secret,) = set(SECRET.findall(self._site.shown(one.record, "rotate_secret", hours=0)))
        one.secret.has_become(secret, since=begun)

    def switch_by_api(self, one: EditedSubscription, *, active: bool) -> None:
        with one.is_active.changing(active):
            self._api.create(f"subscriptions/{one.id}/{_switch(active)}")

    def switch_both_in_list(self, *, active: bool) -> None:
        one, other = self.subscriptions.values()
        with one.is_active.changing(active), other.is_active.changing(active):
            self._site.confirm_chosen("subscription", f"{_switch(active)}_chosen", [one.id, other.id])

    def switch_subscriber_in_dialog(self, *, active: bool) -> None:
        with self.is_active.changing(active):
            self._site.confirm(self._record, _switch(active))

    def edit_subscriber(self, **changes: str) -> None:
        self._site.save(self._record, **changes)

    def rename(self, name: str) -> None:
        self._api.change(f"subscribers/{self.name}", name=name)
        self.name = name

    # --- what follows from them ------------------------------------------------

    def qualified(self, event: Published) -> set[bool]:
        """Return whether the event was for the subscriber; both, where something was switched during the call."""
        switches = (self.subscriptions[event.type].is_active, self.is_active)
        own, subscribers = (switch.between(event.started, event.ended) for switch in switches)
        return {both and other for both in own for other in subscribers}

    def was_skipped(self, event: Published, sent_at: float) -> bool:
        """Return whether its own subscription was inactive at some time before it was sent."""
        return False in self.subscriptions[event.type].is_active.between(event.started, sent_at)

    def _elsewhere(self, one: EditedSubscription) -> str:
        return next(address for address in self._addresses if address != one.address.now)

    def _next_edition(self) -> str:
        self._editions += 1
        return str(self._editions)


def _switch(active: bool) -> str:
    return "activate" if active else "inactivate"
