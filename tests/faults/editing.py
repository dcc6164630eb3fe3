"""A subscriber that admins edit all the time, and what must and must not reach it."""

import json
import re
import time
from collections.abc import Callable, Iterator

import requests

from broker_project.stack.demo.records import Published
from tests.faults.admin_site import AdminSite
from tests.faults.edited import EDITION, EditedSubscription
from tests.faults.in_force import InForce
from tests.faults.load import Load
from tests.real_broker import TIMEOUT, Broker

SECRET = re.compile(r"whsec_[A-Za-z0-9+/=]+")

Edit = Callable[[], None]


class Admins:
    """People who edit a subscriber with two subscriptions, through the API and the admin site."""

    def __init__(self, load: Load, name: str, secrets: dict[str, str], addresses: tuple[str, str]) -> None:
        self.name = name
        self.is_active = InForce(first=True)
        self.subscriptions = {
            event_type: EditedSubscription(
                _id_of(load.broker, name, event_type), InForce(addresses[0]), InForce(""), InForce(secret)
            )
            for event_type, secret in secrets.items()
        }
        self._broker = load.broker
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
            self._api("PATCH", f"subscriptions/{one.id}", endpoint=self._elsewhere(one))

    def edit_form(self, one: EditedSubscription) -> None:
        """Change endpoint and headers at once."""
        address, edition = self._elsewhere(one), self._next_edition()
        with one.address.changing(address), one.edition.changing(edition):
            self._site.save(one.record, endpoint=address, headers=json.dumps({EDITION: edition}))

    def rotate_by_api(self, one: EditedSubscription) -> None:
        begun = time.monotonic()
        answered = self._api("POST", f"subscriptions/{one.id}/rotate-secret", overlap_seconds=0)
        one.secret.has_become(answered["signing_secret"], since=begun)

    def rotate_on_page(self, one: EditedSubscription) -> None:
        begun = time.monotonic()
        (secret,) = set(SECRET.findall(self._site.shown(one.record, "rotate_secret", hours=0)))
        one.secret.has_become(secret, since=begun)

    def switch_by_api(self, one: EditedSubscription, *, active: bool) -> None:
        with one.is_active.changing(active):
            self._api("POST", f"subscriptions/{one.id}/{_switch(active)}")

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
        self._api("PATCH", f"subscribers/{self.name}", name=name)
        self.name = name

    # --- what follows from them ------------------------------------------------

    def qualified(self, event: Published) -> set[bool]:
        """Say whether the event was for the subscriber; both, where something was switched during the call."""
        switches = (self.subscriptions[event.type].is_active, self.is_active)
        own, subscribers = (switch.between(event.started, event.ended) for switch in switches)
        return {both and other for both in own for other in subscribers}

    def was_skipped(self, event: Published, sent_at: float) -> bool:
        """Say whether its own subscription was inactive at some time before it was sent."""
        return False in self.subscriptions[event.type].is_active.between(event.started, sent_at)

    def _elsewhere(self, one: EditedSubscription) -> str:
        return next(address for address in self._addresses if address != one.address.now)

    def _next_edition(self) -> str:
        self._editions += 1
        return str(self._editions)

    def _api(self, method: str, path: str, **fields: object) -> dict[str, str]:
        headers = {"Authorization": f"Bearer {self._broker.management.token}", "If-Match": "*"}
        address = f"{self._broker.web}/api/v1/{path}"
        answered = requests.request(method, address, json=fields or None, headers=headers, timeout=TIMEOUT)
        answered.raise_for_status()
        changed: dict[str, str] = answered.json()
        return changed


def _switch(active: bool) -> str:
    return "activate" if active else "inactivate"


def _id_of(broker: Broker, subscriber: str, event_type: str) -> int:
    (found,) = broker.get("subscriptions", subscriber=subscriber, event_type=event_type)["items"]
    return int(found["id"])
