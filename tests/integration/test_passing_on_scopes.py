"""Keys that issue keys: nobody passes on what they have not."""

import datetime as dt
from typing import Any, Final

import pytest
from django.utils import timezone

from subscriptions.models import ApiKey, Scope
from tests import factories
from tests.clients import Answer, client_of, client_with

pytestmark = [pytest.mark.django_db, pytest.mark.behaviour("1.2")]

ROOT: Final = "/api/v1/api-keys"
JSON: Final = "application/json"


def issued(token: str, **asked: object) -> Answer:
    return client_with(token).post(ROOT, {"kind": "MANAGEMENT", **asked}, content_type=JSON)


@pytest.mark.parametrize(
    ("own", "asked", "status"),
    [
        (["keys"], ["keys"], 201),
        (["keys"], ["read"], 403),
        (["keys"], None, 403),
        (["keys", "read"], ["keys", "read"], 201),
        (["keys", "read"], ["keys", "read", "configure"], 403),
        (["publish", "read", "configure", "receive", "operate"], ["read"], 403),
        ([*Scope.values], None, 201),
    ],
)
def test_a_key_issues_none_that_opens_more(own: list[str], asked: list[str] | None, status: int) -> None:
    _, token = factories.api_key(scopes=own)
    answer = issued(token, **({} if asked is None else {"scopes": asked}))
    assert answer.status_code == status
    assert ApiKey.objects.count() == (2 if status == 201 else 1)


def test_it_is_told_which_scopes_it_cannot_pass_on() -> None:
    factories.publisher("till")
    _, token = factories.api_key(scopes=["keys", "read"])
    answer = issued(token, kind="PUBLISHER", publisher="till")
    assert answer.json() == {
        "type": "urn:broker:beyond_issuer",
        "code": "beyond_issuer",
        "title": "Beyond the issuer",
        "status": 403,
        "detail": "Nobody passes on a scope that they have not: publish, operate.",
    }


def test_nor_does_it_rotate_one_that_opens_more() -> None:
    wide, _ = factories.api_key()
    narrow, token = factories.api_key(scopes=["keys"])
    client = client_with(token)
    refused = client.post(f"{ROOT}/{wide.pk}/rotate", content_type=JSON)
    assert (refused.status_code, refused.json()["code"]) == (403, "beyond_issuer")
    wide.refresh_from_db()
    assert wide.retires_at is None
    assert client.post(f"{ROOT}/{narrow.pk}/rotate", content_type=JSON).status_code == 201
    assert client.post(f"{ROOT}/{wide.pk}/revoke", content_type=JSON).status_code == 200, "that opens nothing"


def test_without_asking_a_key_has_all_of_its_kind_but_may_issue_none() -> None:
    factories.publisher("till")
    factories.subscriber("shop")
    client = client_of()
    owners = {"PUBLISHER": {"publisher": "till"}, "SUBSCRIBER": {"subscriber": "shop"}, "MANAGEMENT": {}}
    answers = [client.post(ROOT, {"kind": kind, **owner}, content_type=JSON) for kind, owner in owners.items()]
    assert [answer.json()["scopes"] for answer in answers] == [
        ["publish", "read", "operate"],
        ["read", "configure", "receive", "operate"],
        ["publish", "read", "configure", "receive", "operate"],
    ]


@pytest.mark.parametrize(
    "scopes",
    [[], ["root"], ["keys"], ["publish", "configure"], "publish", None, [None], {"publish": True}],
)
def test_scopes_that_a_kind_has_not_are_refused(scopes: object) -> None:
    factories.publisher("till")
    before = (client := client_of()) and ApiKey.objects.count()
    answer = client.post(ROOT, {"kind": "PUBLISHER", "publisher": "till", "scopes": scopes}, content_type=JSON)
    assert (answer.status_code, answer.json()["errors"][0]["pointer"][:8]) == (400, "#/scopes")
    assert ApiKey.objects.count() == before


def test_scopes_are_told_once_each_and_in_one_order() -> None:
    answer = client_of().post(ROOT, {"kind": "MANAGEMENT", "scopes": ["read", "publish", "read"]}, content_type=JSON)
    assert answer.json()["scopes"] == ["publish", "read"]


def test_who_issued_a_key_is_noted() -> None:
    key, token = factories.api_key()
    assert issued(token).json()["issued_by"] == f"key {key.prefix}…"


HOUR: Final = dt.timedelta(hours=1)


@pytest.mark.parametrize(("hours", "status"), [(None, 403), (2, 403), (1, 201), (0.5, 201)])
def test_a_key_issues_none_that_outlives_it(hours: float | None, status: int) -> None:
    now = timezone.now()
    _, token = factories.api_key(scopes=["keys"], expires_at=now + HOUR)
    answer = issued(token, scopes=["keys"], expires_at=hours and (now + hours * HOUR).isoformat())
    assert answer.status_code == status
    assert ApiKey.objects.count() == (2 if status == 201 else 1)


def test_it_is_told_until_when_it_may_issue() -> None:
    ends_at = (timezone.now() + HOUR).replace(microsecond=0)
    _, token = factories.api_key(scopes=["keys"], expires_at=ends_at)
    refused = issued(token, scopes=["keys"]).json()
    assert (refused["code"], refused["detail"]) == (
        "beyond_issuer",
        f"A key ends no later than the one that issues it, at {ends_at.isoformat()}.",
    )


def test_nor_is_it_followed_by_one_that_does_so() -> None:
    now = timezone.now()
    own, token = factories.api_key(scopes=["keys"], expires_at=now + HOUR)
    endless, _ = factories.api_key(scopes=["keys"])
    brief, _ = factories.api_key(scopes=["keys"], expires_at=now + HOUR / 2)
    client = client_with(token)
    answers = [client.post(f"{ROOT}/{key.pk}/rotate", content_type=JSON) for key in (own, endless, brief)]
    assert [answer.status_code for answer in answers] == [403, 403, 201]
    assert not ApiKey.objects.filter(pk__in=[own.pk, endless.pk], retires_at__isnull=False).exists()


def test_an_overlap_does_not_count_since_the_answer_may_have_been_lost() -> None:
    key, token = factories.api_key()
    answers = [client_with(token).post(f"{ROOT}/{key.pk}/rotate", content_type=JSON) for _ in range(2)]
    assert [answer.status_code for answer in answers] == [201, 201]


@pytest.mark.parametrize(
    ("own", "default", "asked", "status"),
    [
        (5, 0, None, 403),
        (5, 0, 100_000, 403),
        (5, 0, 6, 403),
        (5, 0, 5, 201),
        (5, 0, 1, 201),
        (None, 0, None, 201),
        (None, 0, 100_000, 201),
        (None, 600, None, 201),
        (None, 600, 601, 403),
        (None, 600, 600, 201),
        (5, 5, None, 201),
        (5, 6, None, 403),
        (1_000, 600, 1_000, 201),
    ],
)
def test_a_key_issues_none_that_may_send_more(
    own: int | None, default: int, asked: int | None, status: int, settings: Any
) -> None:
    settings.REQUESTS_PER_MINUTE = default
    _, token = factories.api_key(scopes=["keys"], requests_per_minute=own)
    answer = issued(token, scopes=["keys"], requests_per_minute=asked)
    assert answer.status_code == status
    assert ApiKey.objects.count() == (2 if status == 201 else 1)


def test_it_is_told_how_many_requests_it_may_pass_on() -> None:
    _, token = factories.api_key(scopes=["keys"], requests_per_minute=5)
    refused = issued(token, scopes=["keys"]).json()
    assert (refused["code"], refused["detail"]) == (
        "beyond_issuer",
        "A key may send no more than the one that issues it: 5 requests a minute.",
    )


def test_nor_does_it_rotate_one_that_may_and_a_successor_has_the_same_limit() -> None:
    own, token = factories.api_key(scopes=["keys"], requests_per_minute=5)
    faster, _ = factories.api_key(scopes=["keys"], requests_per_minute=6)
    unlimited, _ = factories.api_key(scopes=["keys"])
    client = client_with(token)
    answers = [client.post(f"{ROOT}/{key.pk}/rotate", content_type=JSON) for key in (faster, unlimited, own)]
    assert [answer.status_code for answer in answers] == [403, 403, 201]
    assert answers[-1].json()["requests_per_minute"] == 5
    assert not ApiKey.objects.filter(pk__in=[faster.pk, unlimited.pk], retires_at__isnull=False).exists()
