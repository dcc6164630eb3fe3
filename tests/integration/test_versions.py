"""`ETag` and `If-Match`: who changes what they have not seen is told so."""

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest
from django.db import connection
from django.test import Client

from subscriptions.models import Subscriber, Subscription
from tests import factories
from tests.clients import client_of
from tests.receiver import PATIENCE

JSON = "application/json"
ROOT = "/api/v1/subscribers"


@pytest.mark.django_db
@pytest.mark.parametrize("tag", ['"1"', '"7", "1"', "*"])
def test_a_change_goes_through_if_the_version_still_holds(tag: str) -> None:
    factories.subscriber("shop")
    answer = client_of().patch(f"{ROOT}/shop", {"description": "x"}, content_type=JSON, headers={"If-Match": tag})
    assert (answer.status_code, answer["ETag"]) == (200, '"2"')


@pytest.mark.django_db
@pytest.mark.parametrize("tag", ['"2"', 'W/"1"', "1", '"x"', "", '"' + "9" * 5000 + '"'])
@pytest.mark.parametrize("method", ["PATCH", "DELETE", "activate", "inactivate"])
def test_whatever_would_change_it_is_refused_at_another_version(method: str, tag: str) -> None:
    before = factories.subscriber("shop")
    action = "" if method.isupper() else f"/{method}"
    answer = client_of().generic(
        "POST" if action else method, f"{ROOT}/shop{action}", "{}", JSON, headers={"If-Match": tag}
    )
    assert (answer.status_code, answer.json()["code"]) == (412, "version_mismatch")
    assert Subscriber.objects.values().get() == Subscriber.objects.filter(version=before.version).values().get()


@pytest.mark.django_db
@pytest.mark.parametrize("action", ["rotate-secret", "activate"])
def test_actions_on_subscriptions_check_the_version_too(action: str) -> None:
    made = factories.subscription()
    headers = {"If-Match": '"9"'}
    answer = client_of().post(f"/api/v1/subscriptions/{made.pk}/{action}", content_type=JSON, headers=headers)
    assert (answer.status_code, Subscription.objects.get().signing_secret) == (412, made.signing_secret)


@pytest.mark.django_db(transaction=True)
def test_of_many_changes_of_one_version_exactly_one_goes_through() -> None:
    factories.subscriber("shop")
    clients = [client_of() for _ in range(8)]
    together = Barrier(len(clients))

    def change(client: Client, number: int) -> int:
        together.wait(timeout=PATIENCE)
        body = {"max_queued_to_send": 100 + number}
        try:
            return client.patch(f"{ROOT}/shop", body, content_type=JSON, headers={"If-Match": '"1"'}).status_code
        finally:
            connection.close()

    with ThreadPoolExecutor(len(clients)) as threads:
        statuses = sorted(threads.map(change, clients, range(len(clients))))
    assert statuses == [200] + [412] * 7
    assert Subscriber.objects.get().version == 2
