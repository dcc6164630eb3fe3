"""Signing secrets and the secret key: rotated while deliveries go on, and never stored in the clear."""

import json
import secrets
from datetime import UTC, datetime, timedelta
from io import StringIO
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core.management import call_command
from django.db import connection
from django.db.models.functions import Now
from django.test import Client
from django.test.utils import CaptureQueriesContext
from psycopg import sql
from standardwebhooks import Webhook, WebhookVerificationError

from broker_project.accounts.models import SecondFactor
from broker_project.core.encryption import DecryptionFailed
from broker_project.stack.load.receiver import Received, Receiver, answer
from broker_project.stack.load.wait import wait_until
from delivery.callbacks.address import callback_terms
from delivery.maintenance.periodic import maintain
from delivery.models import Callback
from delivery.statuses import DeliveryStatus
from subscriptions.credentials.signing_secrets import rotate_secret
from subscriptions.management.commands import rotate_keys
from subscriptions.management.commands.rotate_keys import encrypted_columns, reencrypt
from subscriptions.models import EventKind, FormerSecret, Publisher, RetryPolicy, Subscriber, Subscription
from tests.support import factories
from tests.support.admin import browser_with, form_shown, save_form
from tests.support.api import (
    JOB_EVENT,
    SYNC_PATH,
    Answer,
    callback_address,
    client_of,
    invalid_fields,
    problem_of,
    publish,
    publish_job,
)
from tests.support.broker import Worker, publish_numbered, statuses, wait_until_done, wait_until_held
from tests.support.database import execute

pytestmark = pytest.mark.django_db

DAY = timedelta(days=1)
HEADERS = {"X-Token": "secret 4711"}
TABLES = "SELECT relname FROM pg_class WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace"


def rotated(one: Subscription, client: Client | None = None, **asked: Any) -> Answer:
    return (client or client_of()).post(f"/api/v1/subscriptions/{one.pk}/rotate-secret", asked)


def new_secret(one: Subscription, **asked: Any) -> str:
    return str(rotated(one, **asked).json()["signing_secret"])


def sent_now(receiver: Receiver, one: Subscription) -> Received:
    """Return the request with a message that is published now."""
    before = len(receiver.log)
    publish_numbered(one.event_type, 1)
    wait_until_done()
    (sent,) = receiver.log[before:]
    return sent


def verifies(sent: Received, secret: str) -> bool:
    try:
        Webhook(secret).verify(sent.body, dict(sent.headers), json_parse=False)
    except WebhookVerificationError:
        return False
    return True


def known_by(sent: Received, *secrets: str) -> list[bool]:
    return [verifies(sent, secret) for secret in secrets]


def signatures_of(sent: Received) -> int:
    return len(sent.headers["webhook-signature"].split(" "))


@pytest.mark.behaviour("4.9")
def test_without_an_overlap_only_the_new_one_signs(receiver: Receiver, worker: Worker, wanted: Subscription) -> None:
    first = wanted.signing_secret
    second = new_secret(wanted)
    third = new_secret(wanted, overlap_seconds=0)
    after = sent_now(receiver, wanted)
    assert (known_by(after, first, second, third), signatures_of(after)) == ([False, False, True], 1)
    assert not FormerSecret.objects.exists()


def test_the_former_secret_stops_in_its_second(receiver: Receiver, worker: Worker, wanted: Subscription) -> None:
    former = wanted.signing_secret
    answered = rotated(wanted, overlap_seconds=1).json()
    ends_at = datetime.fromisoformat(answered["overlap_ends_at"]).timestamp()
    sent_now(receiver, wanted)
    wait_until(lambda: publish_numbered(wanted.event_type, 1) and signatures_of(receiver.log[-1]) == 1)
    wait_until_done()
    times = [int(sent.headers["webhook-timestamp"]) for sent in receiver.log]
    assert min(times) < ends_at <= max(times)
    assert [verifies(sent, former) for sent in receiver.log] == [at < ends_at for at in times]
    assert all(verifies(sent, answered["signing_secret"]) for sent in receiver.log)


def test_a_client_may_lose_the_new_secret(receiver: Receiver, worker: Worker, wanted: Subscription) -> None:
    known = wanted.signing_secret
    lost = new_secret(wanted)
    secret = new_secret(wanted)
    assert known_by(sent_now(receiver, wanted), known, lost, secret) == [True, True, True]


def test_an_overlap_can_be_ended_early(receiver: Receiver, worker: Worker, wanted: Subscription) -> None:
    former = wanted.signing_secret
    assert known_by(sent_now(receiver, wanted), former) == [True]
    secret, stranger = new_secret(wanted), factories.subscription().signing_secret
    during = sent_now(receiver, wanted)
    assert (known_by(during, former, secret, stranger), signatures_of(during)) == ([True, True, False], 2)
    ended = client_of().post(f"/api/v1/subscriptions/{wanted.pk}/end-overlap")
    assert (ended.status_code, ended.json()["overlap_ends_at"]) == (200, None)
    assert known_by(sent_now(receiver, wanted), former, secret) == [False, True]


def test_an_overlap_is_a_day_by_default() -> None:
    made = factories.subscription()
    periods: list[tuple[dict[str, Any], timedelta]] = [({}, DAY), ({"overlap_seconds": 604_800}, 7 * DAY)]
    for asked, length in periods:
        ends_at = datetime.fromisoformat(rotated(made, **asked).json()["overlap_ends_at"])
        assert abs(ends_at - datetime.now(UTC) - length) < timedelta(minutes=1)
    shorter = rotated(made, overlap_seconds=60).json()["overlap_ends_at"]
    assert datetime.fromisoformat(shorter) == ends_at, "one of the former signs until then"


@pytest.mark.parametrize("seconds", [-1, 604_801, "60", None, 1.5, True])
def test_other_overlaps_are_refused(seconds: object) -> None:
    made = factories.subscription()
    assert problem_of(rotated(made, overlap_seconds=seconds))[0] == 400
    assert Subscription.objects.get().signing_secret == made.signing_secret


def test_more_than_three_former_secrets_are_refused_until_the_overlap_is_ended() -> None:
    made = factories.subscription()
    secrets = [new_secret(made) for _ in range(3)]
    assert problem_of(rotated(made)) == (409, "too_many_secrets")
    assert Subscription.objects.get().signing_secret == secrets[-1]
    assert rotated(made, overlap_seconds=0).status_code == 200
    assert rotated(made).status_code == 200


def test_expired_secrets_do_not_count_and_are_deleted(storage: None) -> None:
    made = factories.subscription()
    for _ in range(3):
        rotated(made)
    FormerSecret.objects.filter(pk__in=FormerSecret.objects.order_by("pk")[:2]).update(signs_until=Now())
    assert rotated(made).status_code == 200
    maintain(keep_days=14, callback_days=14)
    assert FormerSecret.objects.count() == 2


def test_a_rotation_of_another_version_is_refused_and_leaves_no_former_secret() -> None:
    made = factories.subscription()
    address = f"/api/v1/subscriptions/{made.pk}/rotate-secret"
    refused = client_of().post(address, headers={"If-Match": '"9"'})
    assert (problem_of(refused), FormerSecret.objects.count()) == ((412, "version_mismatch"), 0)


def test_only_the_answer_to_the_rotation_has_a_secret(management: Client) -> None:
    made = factories.subscription()
    shown = rotated(made, management).json()["signing_secret"]
    for address in (f"/api/v1/subscriptions/{made.pk}", "/api/v1/subscriptions"):
        text = management.get(address).text
        assert "whsec_" not in text
        assert "overlap_ends_at" in text
    assert shown == Subscription.objects.get().signing_secret != made.signing_secret


def test_a_call_is_signed_by_both_too(calls: None, publisher: Publisher, receiver: Receiver) -> None:
    event_type = factories.event_type("Test.Call", EventKind.SYNC)
    asked = factories.subscription(event_type=event_type, endpoint=receiver.url(SYNC_PATH))
    former = asked.signing_secret
    secret = new_secret(asked)
    assert publish(client_of(publisher), event="Test.Call").status_code == 200
    assert known_by(receiver.log[0], former, secret) == [True, True]


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


def test_tables_are_read_in_chunks(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rotate_keys, "CHUNK", 2)
    several(5)
    Subscription.objects.order_by("pk")[2].delete()
    (column,) = (one for one in encrypted_columns() if one.model is Subscription and "header" in one.purpose)
    rotate(settings)
    with CaptureQueriesContext(connection) as asked:
        assert rotate_keys.count_former(column) == 4
    assert len(asked) == 3, "there are two chunks and no third"


def test_each_value_is_counted_once(settings: Any) -> None:
    several()
    rotate(settings)
    status, counted = run("--check")
    assert (status, counted.splitlines()[-1]) == (1, "9 need a secret key that is not the present one.")
    assert counted.count("subscriber headers: 3 under former keys") == 1


def test_a_rotation_replaces_the_former_key_and_nothing_else(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rotate_keys, "CHUNK", 2)
    made = several()
    rotate_secret(Subscription.objects.filter(pk=made[0].pk))
    before = [said_by(one) for one in made]
    rotate(settings)
    status, counted = run("--check")
    assert status == 1
    assert "signing secret: 3 under former keys" in counted
    assert "former signing secret: 1" in counted
    assert run()[0] == 0
    assert run("--check")[0] == 0
    settings.SECRET_KEY_FALLBACKS = []
    assert [said_by(one) for one in made] == before
    assert FormerSecret.objects.get().secret.startswith("whsec_")


def test_other_applications_are_encrypted_again(callback: Callback, storage: None, settings: Any) -> None:
    made = SecondFactor.objects.create(user=User.objects.create(username="somebody"), seed="JBSWY3DP")
    address = callback_address(callback)
    Callback.objects.update(expires_at=Now())  # its job may still be sent: it is open, or is resubmitted
    rotate(settings)
    assert (run()[0], run("--check")[0]) == (0, 0)
    settings.SECRET_KEY_FALLBACKS = []
    assert callback_address(callback) == address
    assert SecondFactor.objects.get(pk=made.pk).seed == "JBSWY3DP"


def test_expired_secrets_need_no_key(settings: Any) -> None:
    made = factories.subscription()
    rotate_secret(Subscription.objects.filter(pk=made.pk))
    rotate(settings)
    run()
    settings.SECRET_KEY_FALLBACKS, settings.SECRET_KEY = [settings.SECRET_KEY], "a third secret key" * 4
    FormerSecret.objects.update(signs_until="2020-01-01T00:00Z")
    assert "former signing secret: 0 under former keys" in run("--check")[1]


def test_values_that_cannot_be_decrypted_are_reported_and_the_others_encrypted(settings: Any) -> None:
    one, other = several(2)
    execute("UPDATE subscriptions_subscription SET headers = 'nonsense' WHERE id = %s", [one.pk])
    rotate(settings)
    status, said = run()
    assert (status, f"subscription headers of subscription {one.pk} cannot be decrypted" in said) == (1, True)
    assert said.splitlines()[-1] == "1 need a secret key that is not among BROKER_SECRET_KEY_FALLBACKS."
    assert "4711" not in said
    settings.SECRET_KEY_FALLBACKS = []
    assert Subscription.objects.get(pk=other.pk).headers == HEADERS
    assert run("--check")[0] == 1


def test_a_value_encrypted_for_one_row_cannot_be_decrypted_in_another() -> None:
    one, other = several(2)
    execute(
        "UPDATE subscriptions_subscription s SET signing_secret = o.signing_secret, headers = o.signing_secret"
        " FROM subscriptions_subscription o WHERE s.id = %s AND o.id = %s",
        [one.pk, other.pk],
    )
    for name in ("signing_secret", "headers"):
        with pytest.raises(DecryptionFailed):
            getattr(Subscription.objects.get(pk=one.pk), name)


@pytest.mark.django_db(transaction=True)
def test_an_interrupted_rotation_continues(settings: Any, monkeypatch: pytest.MonkeyPatch, storage: None) -> None:
    monkeypatch.setattr(rotate_keys, "CHUNK", 1)
    several(3)
    rotate(settings)
    (column,) = [one for one in encrypted_columns() if one.purpose == "signing secret"]
    next(iter(reencrypt(column)))
    assert rotate_keys.count_former(column) == 2
    assert sum(count for count, _ in reencrypt(column)) == 2


@pytest.mark.parametrize("policy", [None, "Workfront", "webMethods"])
def test_a_secret_that_cannot_be_decrypted_holds_the_line_until_it_is_rotated(
    receiver: Receiver, worker: Worker, wanted: Subscription, policy: str | None
) -> None:
    broken = factories.subscription(
        endpoint=receiver.url("/b"), retry_policy=RetryPolicy.objects.get(name=policy) if policy else None
    )
    execute("UPDATE subscriptions_subscription SET signing_secret = 'gone' WHERE id = %s", [broken.pk])
    publish_numbered(broken.event_type, 2)
    assert "signing secret cannot be decrypted" in wait_until_held(broken.subscriber).reason
    publish_numbered(wanted.event_type, 1)
    wait_until(lambda: statuses(wanted) == [DeliveryStatus.DELIVERED])
    assert statuses(broken) == [DeliveryStatus.PENDING] * 2
    assert client_of().post(f"/api/v1/subscriptions/{broken.pk}/rotate-secret").status_code == 200
    wait_until_done()
    assert receiver.bodies("/b") == [b"0", b"1"]


def test_the_api_reports_unreadable_values_and_sets_them_again() -> None:
    made = factories.subscription(headers=HEADERS)
    execute("UPDATE subscriptions_subscription SET headers = 'gone' WHERE id = %s", [made.pk])
    client, address = client_of(), f"/api/v1/subscriptions/{made.pk}"
    shown = client.get(address).json()
    assert (shown["headers"], shown["unreadable"]) == (None, ["headers"])
    (listed,) = client.get("/api/v1/subscriptions").json()["items"]
    assert listed == shown
    assert [client.post(f"{address}/{one}").status_code for one in ("pause", "resume")] == [200, 200]
    kept = client.patch(address, {"headers": {"X-Token": None}})
    assert invalid_fields(kept) == ["headers"]
    mended = client.patch(address, {"headers": {"X-Token": "new"}}).json()
    assert (mended["headers"], mended["unreadable"]) == ({"X-Token": None}, [])
    assert Subscription.objects.get().headers == {"X-Token": "new"}


def test_the_admin_reports_unreadable_values(admin: Client) -> None:
    made = factories.subscriber(headers=HEADERS)
    execute("UPDATE subscriptions_subscriber SET headers = 'gone' WHERE id = %s", [made.pk])
    page = f"/admin/subscriptions/subscriber/{made.pk}/change/"
    assert b"encrypted under a secret key that the broker no longer has" in admin.get(page).content
    save_form(admin, made, form_shown(admin, made) | {"headers": '{"X-Token": "new"}'})
    assert Subscriber.objects.get().headers == {"X-Token": "new"}
    assert b"sealed under" not in admin.get(page).content


def everything() -> bytes:
    """Return all that stands in the tables of the database, and bytes as what they are beside how they are shown."""
    found: list[bytes] = []
    for (table,) in execute(TABLES):
        stored = execute(sql.SQL("SELECT * FROM {}").format(sql.Identifier(table)))
        values = [value for row in stored for value in row if value is not None]
        found += [bytes(one) if isinstance(one, bytes | memoryview) else str(one).encode() for one in values]
    return b"\n".join(found)


def post(client: Client, path: str, **fields: object) -> Answer:
    return client.post(f"/api/v1/{path}", json.dumps(fields))


def test_no_table_shows_a_secret(receiver: Receiver, worker: Worker, publisher: Publisher, admin: Client) -> None:
    own, theirs, changed, edited = (f"told in confidence {secrets.token_hex(9)}" for _ in range(4))
    client, event_type = client_of(), factories.event_type()
    receiver.on("/a", answer(404, f"you said {own}".encode(), X_You_Said=theirs), answer())
    post(client, "subscribers", name="shop", headers={"X-Key": theirs})
    fields = {"endpoint": receiver.url("/a"), "event_type": event_type.name, "headers": {"X-Own": own}}
    made = post(client, "subscriptions", subscriber="shop", **fields).json()
    publish_numbered(event_type, 2)
    wait_until_done()
    assert {request.headers["x-own"] for request in receiver.log} == {own}
    client.patch(f"/api/v1/subscriptions/{made['id']}", {"headers": {"X-Own": changed}})
    rotated = post(client, f"subscriptions/{made['id']}/rotate-secret").json()
    shop = Subscription.objects.get().subscriber
    save_form(admin, shop, form_shown(admin, shop) | {"headers": json.dumps({"X-Key": None, "X-More": edited})})
    assert Subscription.objects.get().subscriber.headers == {"X-Key": theirs, "X-More": edited}
    factories.subscription(event_type=factories.event_type(JOB_EVENT, EventKind.QUEUE), endpoint=receiver.url("/job"))
    publish_job(client_of(publisher))
    wait_until_done()
    token = callback_address(Callback.objects.get(), callback_terms()).rpartition("/")[2]

    stored = everything()
    assert event_type.name.encode() in stored, "or nothing has been looked at"
    known = (own, theirs, changed, edited, made["signing_secret"], rotated["signing_secret"], token)
    assert [one for one in known if one.removeprefix("whsec_").encode() in stored] == []


@pytest.mark.parametrize("may", ["view_subscription", "change_subscription"])
def test_the_admin_shows_header_names_only_with_permission_to_view_or_change_them(may: str) -> None:
    made = factories.subscription(headers={"X-Own": "told in confidence"})
    page = browser_with(f"subscriptions.{may}").get(f"/admin/subscriptions/subscription/{made.pk}/change/").text
    assert ("X-Own" in page, "told in confidence" in page) == (True, False)
