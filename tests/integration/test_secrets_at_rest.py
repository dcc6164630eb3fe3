"""No table has a secret that can be read: whatever was done with it, every column of every table is looked through."""

import json
import secrets

import pytest
from django.contrib.auth.models import Permission, User
from django.db import connection
from django.test import Client
from psycopg import sql

from delivery.callbacks.address import callback_terms
from delivery.models import Callback
from subscriptions.models import EventKind, Publisher, Subscription
from tests import factories
from tests.calling_back import JOB, address_of, publish_job
from tests.clients import Answer, client_of
from tests.driving import Worker, publish_numbered, wait_until_done
from tests.publishing import JSON
from tests.receiver import Receiver, answer

TABLES = "SELECT relname FROM pg_class WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace"


def everything() -> bytes:
    """Return all that stands in the tables of the database, and bytes as what they are beside how they are shown."""
    found: list[bytes] = []
    with connection.cursor() as cursor:
        cursor.execute(TABLES)
        for (table,) in cursor.fetchall():
            cursor.execute(sql.SQL("SELECT * FROM {}").format(sql.Identifier(table)))
            values = [value for row in cursor.fetchall() for value in row if value is not None]
            found += [bytes(one) if isinstance(one, bytes | memoryview) else str(one).encode() for one in values]
    return b"\n".join(found)


def post(client: Client, path: str, **fields: object) -> Answer:
    return client.post(f"/api/v1/{path}", json.dumps(fields), content_type=JSON)


def test_no_table_has_a_secret_that_can_be_read(
    receiver: Receiver, worker: Worker, publisher: Publisher, admin: Client
) -> None:
    own, theirs, changed, edited = (f"told in confidence {secrets.token_hex(9)}" for _ in range(4))
    client, event_type = client_of(), factories.event_type()
    receiver.on("/a", answer(404, f"you said {own}".encode(), X_You_Said=theirs), answer())
    post(client, "subscribers", name="shop", headers={"X-Key": theirs})
    fields = {"endpoint": receiver.url("/a"), "event_type": event_type.name, "headers": {"X-Own": own}}
    made = post(client, "subscriptions", subscriber="shop", **fields).json()
    publish_numbered(event_type, 2)
    wait_until_done()
    assert {request.headers["x-own"] for request in receiver.log} == {own}
    client.patch(f"/api/v1/subscriptions/{made['id']}", {"headers": {"X-Own": changed}}, content_type=JSON)
    rotated = post(client, f"subscriptions/{made['id']}/rotate-secret").json()
    form = {"name": "shop", "max_queued_to_send": 500, "processing": "SERIAL", "concurrency": 1, "ack_seconds": 30}
    page = f"/admin/subscriptions/subscriber/{Subscription.objects.get().subscriber_id}/change/"
    admin.post(page, {**form, "headers": json.dumps({"X-Key": None, "X-More": edited})})
    assert Subscription.objects.get().subscriber.headers == {"X-Key": theirs, "X-More": edited}
    factories.subscription(event_type=factories.event_type(JOB, EventKind.QUEUE), endpoint=receiver.url("/job"))
    publish_job(client_of(publisher))
    wait_until_done()
    token = address_of(Callback.objects.get(), callback_terms()).rpartition("/")[2]

    stored = everything()
    assert event_type.name.encode() in stored, "or nothing has been looked at"
    known = (own, theirs, changed, edited, made["signing_secret"], rotated["signing_secret"], token)
    assert [one for one in known if one.removeprefix("whsec_").encode() in stored] == []


@pytest.mark.django_db
@pytest.mark.parametrize("may", ["view_subscription", "change_subscription"])
def test_the_admin_shows_header_names_only_to_whoever_may_see_or_change_them(may: str) -> None:
    made = factories.subscription(headers={"X-Own": "told in confidence"})
    somebody = User.objects.create(username="somebody", is_staff=True)
    somebody.user_permissions.set(Permission.objects.filter(codename=may))
    browser = Client()
    browser.force_login(somebody)
    page = browser.get(f"/admin/subscriptions/subscription/{made.pk}/change/").content.decode()
    assert ("X-Own" in page, "told in confidence" in page) == (True, False)
