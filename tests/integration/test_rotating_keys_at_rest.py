"""Changing the secret key: what was sealed is sealed anew while all goes on, and what cannot be opened says so."""

from io import StringIO
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core.management import call_command
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from broker_project.accounts.models import SecondFactor
from broker_project.core.keyring import CannotBeOpened
from delivery.models import Callback
from delivery.statuses import DeliveryStatus
from subscriptions.credentials import secret_key_rotation
from subscriptions.credentials.rotate_secrets import rotate_secret
from subscriptions.credentials.secret_key_rotation import reseal, sealed_columns
from subscriptions.models import EventKind, FormerSecret, Publisher, RetryPolicy, Subscriber, Subscription
from tests import factories
from tests.calling_back import JOB, address_of, publish_job
from tests.clients import client_of
from tests.driving import Worker, publish_numbered, statuses, wait_until_done, wait_until_held
from tests.publishing import JSON
from tests.receiver import Receiver, wait_until

HEADERS = {"X-Token": "secret 4711"}


def rotate(settings: Any) -> None:
    settings.SECRET_KEY_FALLBACKS = [settings.SECRET_KEY]
    settings.SECRET_KEY = "another secret key" * 4


def run(*arguments: str) -> tuple[int, str]:
    """Return the exit status of `rotate_keys` and what it has said."""
    said = StringIO()
    try:
        call_command("rotate_keys", *arguments, stdout=said, stderr=said)
    except SystemExit as ended:
        return int(str(ended.code)), said.getvalue()
    return 0, said.getvalue()


def several(count: int = 3) -> list[Subscription]:
    return [factories.subscription(factories.subscriber(headers=HEADERS), headers=HEADERS) for _ in range(count)]


def said_by(one: Subscription) -> tuple[object, ...]:
    fresh = Subscription.objects.select_related("subscriber").get(pk=one.pk)
    return fresh.signing_secret, fresh.headers, fresh.subscriber.headers, fresh.version, fresh.updated_at


@pytest.mark.django_db
def test_tables_are_looked_at_in_chunks(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(secret_key_rotation, "CHUNK", 2)
    several(5)
    Subscription.objects.order_by("pk")[2].delete()
    (column,) = (one for one in sealed_columns() if one.model is Subscription and "header" in one.purpose)
    rotate(settings)
    with CaptureQueriesContext(connection) as asked:
        assert secret_key_rotation.count_former(column) == 4
    assert len(asked) == 5, "two chunks are found and counted, and there is no third"


@pytest.mark.django_db
def test_each_value_is_counted_once(settings: Any) -> None:
    several()
    rotate(settings)
    status, counted = run("--check")
    assert (status, counted.splitlines()[-1]) == (1, "9 need a secret key that is not the present one.")
    assert counted.count("subscriber headers: 3 under former keys") == 1


@pytest.mark.django_db
def test_afterwards_the_former_key_is_needed_by_nothing_and_nothing_else_has_changed(
    settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(secret_key_rotation, "SLICE", 2)
    monkeypatch.setattr(secret_key_rotation, "CHUNK", 3)
    made = several()
    rotate_secret(Subscription.objects.filter(pk=made[0].pk), random_bytes=b"n" * 32)
    before = [said_by(one) for one in made]
    rotate(settings)
    status, counted = run("--check")
    assert (status, "signing secret: 3 under former keys" in counted, "former signing secret: 1" in counted) == (
        1,
        True,
        True,
    )
    assert run()[0] == 0
    assert run("--check")[0] == 0
    settings.SECRET_KEY_FALLBACKS = []
    assert [said_by(one) for one in made] == before
    assert FormerSecret.objects.get().secret.startswith("whsec_")


def test_the_addresses_of_callbacks_are_sealed_anew_too(publisher: Publisher, storage: None, settings: Any) -> None:
    factories.subscription(event_type=factories.event_type(JOB, EventKind.QUEUE))
    client = client_of(publisher)
    publish_job(client)
    callback = Callback.objects.get()
    address = address_of(callback)
    rotate(settings)
    assert (run()[0], run("--check")[0]) == (0, 0)
    settings.SECRET_KEY_FALLBACKS = []
    assert address_of(callback) == address


@pytest.mark.django_db
def test_what_other_applications_keep_sealed_is_sealed_anew_too(settings: Any) -> None:
    made = SecondFactor.objects.create(user=User.objects.create(username="somebody"), seed="JBSWY3DP")
    rotate(settings)
    assert run()[0] == 0
    settings.SECRET_KEY_FALLBACKS = []
    assert SecondFactor.objects.get(pk=made.pk).seed == "JBSWY3DP"


@pytest.mark.django_db
def test_what_is_over_needs_no_key(settings: Any) -> None:
    made = factories.subscription()
    rotate_secret(Subscription.objects.filter(pk=made.pk), random_bytes=b"n" * 32)
    rotate(settings)
    run()
    settings.SECRET_KEY_FALLBACKS, settings.SECRET_KEY = [settings.SECRET_KEY], "a third secret key" * 4
    FormerSecret.objects.update(signs_until="2020-01-01T00:00Z")
    assert "former signing secret: 0 under former keys" in run("--check")[1]


@pytest.mark.django_db
def test_what_cannot_be_opened_is_named_and_the_rest_is_done(settings: Any) -> None:
    one, other = several(2)
    with connection.cursor() as cursor:
        cursor.execute("UPDATE subscriptions_subscription SET headers = 'nonsense' WHERE id = %s", [one.pk])
    rotate(settings)
    status, said = run()
    assert (status, f"subscription headers of subscription {one.pk} cannot be opened" in said) == (1, True)
    assert said.splitlines()[-1] == "1 need a secret key that is not among BROKER_SECRET_KEY_FALLBACKS."
    assert "4711" not in said
    settings.SECRET_KEY_FALLBACKS = []
    assert Subscription.objects.get(pk=other.pk).headers == HEADERS
    assert run("--check")[0] == 1


@pytest.mark.django_db
def test_what_is_sealed_for_one_row_does_not_open_in_another() -> None:
    one, other = several(2)
    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE subscriptions_subscription s SET signing_secret = o.signing_secret, headers = o.signing_secret"
            " FROM subscriptions_subscription o WHERE s.id = %s AND o.id = %s",
            [one.pk, other.pk],
        )
    for name in ("signing_secret", "headers"):
        with pytest.raises(CannotBeOpened):
            getattr(Subscription.objects.get(pk=one.pk), name)


@pytest.mark.django_db(transaction=True)
def test_it_goes_on_where_it_was_interrupted(settings: Any, monkeypatch: pytest.MonkeyPatch, storage: None) -> None:
    monkeypatch.setattr(secret_key_rotation, "SLICE", 1)
    several(3)
    rotate(settings)
    (column,) = [one for one in sealed_columns() if one.purpose == "signing secret"]
    next(iter(reseal(column)))
    assert secret_key_rotation.count_former(column) == 2
    assert sum(slice_.sealed for slice_ in reseal(column)) == 2


@pytest.fixture
def wanted(receiver: Receiver, storage: None) -> Subscription:
    return factories.subscription(endpoint=receiver.url("/a"))


@pytest.mark.parametrize("policy", [None, "Workfront", "webMethods"])
def test_a_secret_that_cannot_be_opened_holds_its_line_until_another_is_set(
    receiver: Receiver, worker: Worker, wanted: Subscription, policy: str | None
) -> None:
    broken = factories.subscription(
        endpoint=receiver.url("/b"), retry_policy=RetryPolicy.objects.get(name=policy) if policy else None
    )
    with connection.cursor() as cursor:
        cursor.execute("UPDATE subscriptions_subscription SET signing_secret = 'gone' WHERE id = %s", [broken.pk])
    publish_numbered(broken.event_type, 2)
    line = wait_until_held(broken.subscriber)
    assert "signing secret cannot be opened" in line.held_reason
    publish_numbered(wanted.event_type, 1)
    wait_until(lambda: statuses(wanted) == [DeliveryStatus.DELIVERED])
    assert statuses(broken) == [DeliveryStatus.PENDING] * 2
    assert client_of().post(f"/api/v1/subscriptions/{broken.pk}/rotate-secret", content_type=JSON).status_code == 200
    wait_until_done()
    assert receiver.bodies("/b") == [b"0", b"1"]


@pytest.mark.django_db
def test_the_api_says_what_cannot_be_read_and_takes_it_anew() -> None:
    made = factories.subscription(headers=HEADERS)
    with connection.cursor() as cursor:
        cursor.execute("UPDATE subscriptions_subscription SET headers = 'gone' WHERE id = %s", [made.pk])
    client, address = client_of(), f"/api/v1/subscriptions/{made.pk}"
    shown = client.get(address).json()
    assert (shown["headers"], shown["unreadable"]) == (None, ["headers"])
    (listed,) = client.get("/api/v1/subscriptions").json()["items"]
    assert listed == shown
    kept = client.patch(address, {"headers": {"X-Token": None}}, content_type=JSON)
    assert (kept.status_code, kept.json()["errors"][0]["pointer"]) == (400, "#/headers")
    mended = client.patch(address, {"headers": {"X-Token": "new"}}, content_type=JSON).json()
    assert (mended["headers"], mended["unreadable"]) == ({"X-Token": None}, [])
    assert Subscription.objects.get().headers == {"X-Token": "new"}


@pytest.mark.django_db
def test_the_admin_says_so_too(admin: Client) -> None:
    made = factories.subscriber(headers=HEADERS)
    with connection.cursor() as cursor:
        cursor.execute("UPDATE subscriptions_subscriber SET headers = 'gone' WHERE id = %s", [made.pk])
    page = f"/admin/subscriptions/subscriber/{made.pk}/change/"
    assert b"sealed under a secret key that is gone" in admin.get(page).content
    form = {"name": made.name, "max_queued_to_send": 500, "processing": "SERIAL", "concurrency": 1, "ack_seconds": 30}
    admin.post(page, {**form, "headers": '{"X-Token": "new"}'})
    assert Subscriber.objects.get().headers == {"X-Token": "new"}
    assert b"sealed under" not in admin.get(page).content
