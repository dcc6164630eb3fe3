"""Rotate and revoke API keys, also at the same time."""

import contextlib
import datetime as dt
import itertools
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Final

import pytest
import time_machine
from django.contrib.admin.models import ADDITION, CHANGE, LogEntry
from django.db import IntegrityError, transaction
from django.test import Client
from django.utils import timezone

from subscriptions.credentials import keys
from subscriptions.credentials.keys import KeyEnded
from subscriptions.credentials.scopes import Issuer
from subscriptions.models import ApiKey, Scope
from tests.support import factories
from tests.support.api import Answer, client_of, client_with, invalid_fields, problem_of
from tests.support.database import do_and_disconnect, in_parallel

pytestmark = [pytest.mark.django_db, pytest.mark.behaviour("1.2")]

ROOT: Final = "/api/v1/api-keys"
SOME_LIST: Final = "/api/v1/event-types"
MORNING: Final = dt.datetime(2026, 11, 20, 9, 0, tzinfo=dt.UTC)
HOUR: Final = dt.timedelta(hours=1)
DAY: Final = dt.timedelta(days=1)


def rotated(client: Client, key: ApiKey, **asked: object) -> Answer:
    return client.post(f"{ROOT}/{key.pk}/rotate", asked)


def opens(token: str) -> bool:
    return client_with(token).get(SOME_LIST).status_code == 200


def named(key: ApiKey) -> Any:
    return ApiKey.objects.filter(pk=key.pk)


def test_a_successor_is_the_same_but_for_its_token() -> None:
    former, _ = factories.api_key(factories.publisher("till"), label="rack 3", scopes=[Scope.PUBLISH])
    answer = rotated(client_of(), former)
    made = answer.json()
    assert (answer.status_code, answer["Location"]) == (201, f"{ROOT}/{made['id']}")
    assert "no-store" in answer["Cache-Control"]
    same = {"kind": "PUBLISHER", "publisher": "till", "scopes": ["publish"], "label": "rack 3", "expires_at": None}
    assert {name: made[name] for name in same} == same
    assert (made["successor_of"], made["retires_at"]) == (former.pk, None)
    assert opens(made["token"]) is False, "it has the scope publish only"
    assert client_with(made["token"]).get(SOME_LIST).json()["code"] == "missing_scope"


@pytest.mark.behaviour("1.11")
def test_a_rotation_is_in_the_history_of_both_keys() -> None:
    former, _ = factories.api_key()
    made = rotated(client_of(), former, overlap_seconds=0).json()
    noted = LogEntry.objects.values_list("object_id", "object_repr", "action_flag")
    assert {*noted} == {(str(former.pk), str(former), CHANGE), (str(made["id"]), f"{made['prefix']}…", ADDITION)}


@pytest.mark.parametrize(
    ("asked", "overlap"), [({}, DAY), ({"overlap_seconds": 0}, 0 * DAY), ({"overlap_seconds": 2_592_000}, 30 * DAY)]
)
def test_the_former_goes_on_for_an_overlap(asked: dict[str, int], overlap: dt.timedelta) -> None:
    with time_machine.travel(MORNING, tick=False) as clock:
        former, token = factories.api_key(factories.publisher())
        successor = rotated(client_of(), former, **asked).json()["token"]
        former.refresh_from_db()
        assert former.retires_at == MORNING + overlap
        if overlap:
            clock.shift(overlap - dt.timedelta(seconds=1))
            assert (opens(token), opens(successor)) == (True, True)
            clock.shift(1)
        assert (opens(token), opens(successor)) == (False, True)


@pytest.mark.parametrize("seconds", [-1, 2_592_001, 1.5, "60", None, True])
def test_an_overlap_is_a_number_of_seconds_up_to_thirty_days(seconds: object) -> None:
    former, token = factories.api_key(factories.publisher())
    answer = rotated(client_of(), former, overlap_seconds=seconds)
    assert invalid_fields(answer) == ["overlap_seconds"]
    assert (ApiKey.objects.filter(successor_of=former).exists(), opens(token)) == (False, True)


def test_a_successor_lives_as_long_as_the_former_was_issued_for() -> None:
    with time_machine.travel(MORNING, tick=False) as clock:
        former, _ = factories.api_key(factories.publisher(), expires_at=MORNING + 90 * DAY)
        clock.shift(80 * DAY)
        answer = rotated(client_of(), former)
        assert ApiKey.objects.get(pk=answer.json()["id"]).expires_at == MORNING + 170 * DAY


def test_a_second_rotation_after_a_lost_answer_gives_a_whole_life_and_prolongs_nothing() -> None:
    with time_machine.travel(MORNING, tick=False) as clock:
        former, token = factories.api_key(factories.publisher(), expires_at=MORNING + 90 * DAY)
        rotated(client_of(), former, overlap_seconds=3600)
        clock.shift(HOUR / 2)
        second = rotated(client_of(), former, overlap_seconds=86_400).json()
        former.refresh_from_db()
        made = ApiKey.objects.get(pk=second["id"])
        assert (former.retires_at, made.retires_at) == (MORNING + HOUR, None)
        assert made.expires_at == MORNING + HOUR / 2 + 90 * DAY
        clock.shift(HOUR / 2)
        assert (opens(token), opens(second["token"])) == (False, True)


@pytest.mark.parametrize("end", ["revoked", "rotated", "expired"])
def test_nothing_takes_the_place_of_a_key_that_has_ended(end: str) -> None:
    with time_machine.travel(MORNING, tick=False) as clock:
        key, _ = factories.api_key(factories.publisher(), expires_at=MORNING + HOUR if end == "expired" else None)
        if end == "revoked":
            keys.revoke(named(key), now=MORNING)
        if end == "rotated":
            rotated(client_of(), key, overlap_seconds=3600)
        clock.shift(HOUR)
        there = ApiKey.objects.filter(successor_of=key).count()
        answer = rotated(client_of(), key)
        assert problem_of(answer) == (409, "key_ended")
        assert ApiKey.objects.filter(successor_of=key).count() == there


def test_one_of_two_rotations_of_the_same_version_is_refused() -> None:
    former, client = factories.api_key(factories.publisher())[0], client_of()
    tag = client.get(f"{ROOT}/{former.pk}")["ETag"]
    answers = [client.post(f"{ROOT}/{former.pk}/rotate", {}, headers={"If-Match": tag}) for _ in range(2)]
    assert [answer.status_code for answer in answers] == [201, 412]


NEVER_LATER = {
    "revoked later": ({"revoked_at": MORNING}, {"revoked_at": MORNING + HOUR}),
    "revoked no more": ({"revoked_at": MORNING}, {"revoked_at": None}),
    "rotated later": ({"retires_at": MORNING}, {"retires_at": MORNING + HOUR}),
    "rotated no more": ({"retires_at": MORNING}, {"retires_at": None}),
}


@pytest.mark.parametrize(("before", "after"), NEVER_LATER.values(), ids=NEVER_LATER)
def test_the_database_takes_back_no_end(before: dict[str, Any], after: dict[str, Any]) -> None:
    key, _ = factories.api_key()
    named(key).update(**before)
    with transaction.atomic(), pytest.raises(IntegrityError, match="the end of an API key"):
        named(key).update(**after)


def test_an_end_comes_earlier() -> None:
    key, _ = factories.api_key()
    named(key).update(retires_at=MORNING)
    named(key).update(retires_at=MORNING - HOUR)
    assert named(key).get().retires_at == MORNING - HOUR


@pytest.mark.parametrize(
    "change", [{"kind": "MANAGEMENT", "publisher": None}, {"scopes": ["publish", "read"]}, {"digest": b"another"}]
)
def test_the_database_refuses_more_scopes_and_another_owner(change: dict[str, Any]) -> None:
    key, _ = factories.api_key(factories.publisher(), scopes=[Scope.PUBLISH])
    with transaction.atomic(), pytest.raises(IntegrityError, match="whose an API key is and what it opens"):
        named(key).update(**change)


@pytest.mark.parametrize(
    ("kind", "scopes"), [("PUBLISHER", ["keys"]), ("SUBSCRIBER", ["publish"]), ("MANAGEMENT", []), ("MANAGEMENT", "x")]
)
def test_the_database_stores_no_scope_that_a_kind_has_not(kind: str, scopes: list[str] | str) -> None:
    publisher, subscriber = factories.publisher(), factories.subscriber()
    owners: dict[str, Any] = {"PUBLISHER": {"publisher": publisher}, "SUBSCRIBER": {"subscriber": subscriber}}
    with transaction.atomic(), pytest.raises(IntegrityError, match="api_key_scopes"):
        ApiKey.objects.create(kind=kind, scopes=[*scopes], prefix="brk_", digest=b"x", **owners.get(kind, {}))


def test_a_far_end_has_no_successor_beyond_a_hundred_years() -> None:
    former, _ = factories.api_key(factories.publisher())
    named(former).update(expires_at=dt.datetime(9999, 12, 31, tzinfo=dt.UTC))
    with time_machine.travel(MORNING, tick=False):
        answer = rotated(client_of(), former)
    assert answer.status_code == 201
    successor = ApiKey.objects.get(successor_of=former)
    assert successor.expires_at == MORNING + keys.MAX_LIFETIME


@pytest.mark.usefixtures("storage")
def test_two_rotations_at_once_give_two_successors_and_the_earlier_end() -> None:
    former, _ = factories.api_key(factories.publisher())
    begun = timezone.now()

    overlaps = itertools.count(1)

    def rotate() -> ApiKey:
        return keys.rotate(named(former), now=begun, issuer=Issuer("test"), overlap=next(overlaps) * HOUR)[0]

    made = in_parallel(8, rotate)
    assert {one.successor_of_id for one in made} == {former.pk}
    assert {(one.expires_at, one.retires_at) for one in ApiKey.objects.filter(successor_of=former)} == {(None, None)}
    assert named(former).get().retires_at == begun + HOUR


@pytest.mark.usefixtures("storage")
def test_a_rotation_and_a_revocation_at_once_leave_the_key_revoked() -> None:
    former, token = factories.api_key(factories.publisher())

    acts: Iterator[Callable[..., object]] = itertools.cycle([keys.revoke, partial(keys.rotate, issuer=Issuer("test"))])

    def act() -> None:
        with contextlib.suppress(KeyEnded):
            next(acts)(named(former), now=timezone.now())

    in_parallel(6, act)
    assert named(former).get().revoked_at is not None
    assert client_with(token).get(SOME_LIST).status_code == 401


@pytest.mark.usefixtures("storage")
def test_requests_after_a_revocation_are_refused() -> None:
    key, token = factories.api_key(factories.publisher())
    ended: list[bool] = []

    def use() -> tuple[bool, int]:
        was_ended = bool(ended)
        return was_ended, client_with(token).get(SOME_LIST).status_code

    with ThreadPoolExecutor(4) as threads:
        used = [threads.submit(do_and_disconnect, use) for _ in range(40)]
        keys.revoke(named(key), now=timezone.now())
        ended.append(True)
        used += [threads.submit(do_and_disconnect, use) for _ in range(40)]
        seen = {one.result() for one in used}
    assert {status for was_ended, status in seen if was_ended} == {401}
    assert {status for _, status in seen} <= {200, 401}
