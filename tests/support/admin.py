"""Log in to the admin, and walk through all its pages and actions."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from django.contrib import admin
from django.contrib.auth.hashers import make_password
from django.contrib.auth.models import Permission, User
from django.db.models import Model, Value
from django.db.models.functions import Concat
from django.http import HttpRequest
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from delivery.models import Attempt, Delivery, IdempotencyKey, Lane, Message, Replay
from subscriptions.models import RetryPolicy
from tests.support import factories
from tests.support.api import Answer
from tests.support.html_form import Form

PASSWORD = "correct horse battery staple"
SUBSCRIPTION_FORM = {
    "headers": "{}",
    "position": "0",
    "output": "AS_PUBLISHED",
    "delivery_mode": "PUSH",
    "timeout_seconds": "15",
}
"""What the form of a subscription cannot do without, beside its endpoint."""


@cache
def _hashed(password: str) -> str:
    """Hashing takes long, and its result is as good for the next person."""
    return make_password(password)


def admin_user(name: str = "ann", **fields: bool) -> User:
    """Store somebody who may use the admin."""
    powers = {"is_staff": True, "is_superuser": True, **fields}
    return User.objects.create(username=name, password=_hashed(PASSWORD), **powers)


def browser_at(address: str = "198.51.100.1") -> Client:
    """Return a browser of somebody at an address, which is the one of the connection as the server sees it."""
    return Client(REMOTE_ADDR=address)


def log_in(client: Client, name: str = "ann", password: str = PASSWORD) -> Answer:
    return client.post("/admin/login/", {"username": name, "password": password, "next": "/admin/"})


def messages_of(answer: Answer) -> str:
    """Return the messages of the page that an answer leads to."""
    return " ".join(str(message) for message in answer.context["messages"])


@dataclass(frozen=True, slots=True)
class AdminAction:
    """Something that can be done on the pages of a model, to one row, to chosen ones, or to none."""

    model: str
    name: str
    address: str
    pk: int | None = None
    """Of the row that is chosen in the list; None: the address says what it is about."""

    @property
    def title(self) -> str:
        """What the table of permissions calls it."""
        return f"{self.model}.{self.name}"

    def posted(self, client: Client) -> Answer:
        """Do as the first click does: nothing of what asks first is done by that."""
        if self.pk is None:
            return client.post(self.address, {})
        return client.post(self.address, {"action": self.name, "_selected_action": [self.pk]})

    def asked(self, client: Client) -> Answer:
        """Go to its page, or click it in its list."""
        return client.get(self.address) if self.pk is None else self.posted(client)


def admin_models() -> list[str]:
    """Return every model of the site, as its addresses name it."""
    return [_name(model) for model in _registry()]


def names_of_actions() -> Iterator[tuple[Any, str]]:
    """Return every action of every model as its method is called, with the pages it is on."""
    for one in _registry().values():
        for name in one._extract_action_names([*one.actions_detail, *one.actions_list, *(one.actions or ())]):
            yield one, name


def model_pages(model: str, pk: int = 1) -> dict[str, str]:
    """Return the addresses of a model's own pages, by what they take permission to."""
    row = [pk]
    return {
        "list": reverse(f"admin:{model}_changelist"),
        "change": reverse(f"admin:{model}_change", args=row),
        "add": reverse(f"admin:{model}_add"),
        "delete": reverse(f"admin:{model}_delete", args=row),
    }


def change_page(client: Client, row: Model) -> str:
    """Return the page of a row."""
    answer = client.get(reverse(f"admin:{_name(row)}_change", args=[row.pk]))
    assert answer.status_code == 200
    return str(answer.text)


def form_shown(client: Client, row: Model) -> dict[str, Any]:
    """Return what a browser sends of the page of a row that nobody has touched."""
    return Form(change_page(client, row)).fields


def save_form(client: Client, row: Model, form: Mapping[str, Any]) -> Answer:
    """Send the form of a row's page."""
    return client.post(reverse(f"admin:{_name(row)}_change", args=[row.pk]), form)


def admin_actions(rows: dict[str, int]) -> Iterator[AdminAction]:
    """Return all actions there are; `rows` has the id of a row of each model."""
    for model, one in _registry().items():
        name, pk = _name(model), rows.get(_name(model), 1)
        for of_one in one._extract_action_names(one.actions_detail):
            yield AdminAction(name, of_one, reverse(f"admin:{name}_{of_one}", args=[pk]))
        for of_all in one._extract_action_names(one.actions_list):
            yield AdminAction(name, of_all, reverse(f"admin:{name}_{of_all}"))
        for of_many in one.get_actions(_superusers_request()):
            yield AdminAction(name, of_many, reverse(f"admin:{name}_changelist"), pk)


def browser_with(*codenames: str) -> Client:
    """Return a browser of somebody with these permissions, such as `delivery.replay`."""
    made = User.objects.create(username=f"person-{User.objects.count()}", is_staff=True)
    named = Concat("content_type__app_label", Value("."), "codename")
    given = [*Permission.objects.annotate(name_in_code=named).filter(name_in_code__in=codenames)]
    assert len(given) == len(codenames)
    made.user_permissions.set(given)
    client = Client()
    client.force_login(made)
    return client


def view_permissions() -> list[str]:
    """Return the permissions to view every model."""
    found = Permission.objects.filter(codename__startswith="view_").exclude(codename="view_payload")
    return [f"{one.content_type.app_label}.{one.codename}" for one in found.select_related("content_type")]


def one_of_each() -> dict[str, int]:
    """Store a row of each model that has actions of its own; return their ids, by model."""
    made = factories.subscription(factories.subscriber("shop"), factories.event_type("Order.Paid"))
    pulled = factories.subscription(made.subscriber, factories.event_type(), endpoint="", delivery_mode="PULL")
    fields: dict[str, Any] = {"event_type": made.event_type, "content_type": "application/json", "outcome": "ROUTED"}
    secret = {"headers": [["X-Secret", "in a header"]], "filter_string": "in the filter string"}
    message = Message.objects.create(body=b'{"secret": "in the body"}', size=25, **secret, **fields)
    line = made.subscriber.lines.get(lane=Lane.MAIN)
    delivery = Delivery.objects.create(message=message, subscription=made, line=line, size=25)
    answer = {"answer_headers": b"X: in its head", "answer_excerpt": b"in its excerpt"}
    attempt = Attempt.objects.create(delivery=delivery, number=1, started_at=timezone.now(), duration_ms=1, **answer)
    answered: dict[str, Any] = {"message_id": message.pk, "deliveries_count": 1, "expires_at": timezone.now()}
    key = IdempotencyKey.objects.create(key="order-of-somebody", fingerprint=b"", **answered)
    replay = Replay.objects.create(subscription=made, selection={"subscriber": made.subscriber_id}, created_by="x")
    return {
        "subscriptions_eventtype": made.event_type_id or 0,
        "subscriptions_subscriber": made.subscriber_id,
        "subscriptions_subscription": made.pk,
        "subscriptions_apikey": factories.api_key()[0].pk,
        "subscriptions_publisher": factories.publisher().pk,
        "subscriptions_retrypolicy": RetryPolicy.objects.earliest("pk").pk,
        "delivery_message": message.pk,
        "delivery_delivery": delivery.pk,
        "delivery_attempt": attempt.pk,
        "delivery_line": line.pk,
        "delivery_mailbox": pulled.subscriber_id,
        "delivery_replay": replay.pk,
        "delivery_idempotencykey": key.pk,
    }


def page_addresses() -> Iterator[str]:
    """Return the addresses of all pages in the URL conf of the site, about the first row of each model."""
    yield from ("/admin/", "/admin/password_change/", reverse("accounts:second-factor"))
    for model, one in _registry().items():
        first = model._default_manager.values_list("pk", flat=True).first()
        for known in one.get_urls():
            path = str(known.pattern).replace("<path:object_id>", str(first))
            if not path.startswith("^") and (first is not None or "object_id" not in str(known.pattern)):
                yield reverse(f"admin:{_name(model)}_changelist") + path


def _registry() -> dict[type[Model], Any]:
    return dict(admin.site._registry)


def _name(model: Any) -> str:
    return f"{model._meta.app_label}_{model._meta.model_name}"


def _superusers_request() -> HttpRequest:
    request = HttpRequest()
    request.user = User(is_superuser=True, is_active=True)
    return request
