"""API keys that several people rotate, revoke and use at once."""

import datetime as dt
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import pytest
from django.utils import timezone

from broker_project.core.db import forget_connection
from subscriptions.credentials import issue
from subscriptions.credentials.issue import KeyEnded
from subscriptions.credentials.scopes import Issuer
from subscriptions.models import ApiKey
from tests.support import factories
from tests.support.api import client_with

pytestmark = [pytest.mark.usefixtures("storage"), pytest.mark.behaviour("1.2")]

SOME_LIST: Final = "/api/v1/event-types"
HOUR: Final = dt.timedelta(hours=1)


def named(key: ApiKey) -> Any:
    return ApiKey.objects.filter(pk=key.pk)


def test_two_rotations_at_once_give_two_successors_and_the_earlier_end() -> None:
    former, _ = factories.api_key(factories.publisher())
    begun = timezone.now()

    def rotate(overlap: dt.timedelta) -> ApiKey:
        try:
            own = bytes([overlap // HOUR]) * 32
            return issue.rotate(named(former), random_bytes=own, now=begun, issuer=Issuer("test"), overlap=overlap)[0]
        finally:
            forget_connection()

    with ThreadPoolExecutor(8) as threads:
        made = [*threads.map(rotate, [n * HOUR for n in range(1, 9)])]
    assert {one.successor_of_id for one in made} == {former.pk}
    assert {(one.expires_at, one.retires_at) for one in ApiKey.objects.filter(successor_of=former)} == {(None, None)}
    assert named(former).get().retires_at == begun + HOUR


def test_a_rotation_and_a_revocation_at_once_leave_the_key_revoked() -> None:
    former, token = factories.api_key(factories.publisher())

    def act(number: int) -> None:
        try:
            if number % 2:
                issue.revoke(named(former), now=timezone.now())
            else:
                issue.rotate(
                    named(former), random_bytes=bytes([number]) * 32, now=timezone.now(), issuer=Issuer("test")
                )
        except KeyEnded:
            pass
        finally:
            forget_connection()

    with ThreadPoolExecutor(6) as threads:
        list(threads.map(act, range(6)))
    assert named(former).get().revoked_at is not None
    assert client_with(token).get(SOME_LIST).status_code == 401


def test_whatever_begins_after_a_revocation_was_answered_is_refused() -> None:
    key, token = factories.api_key(factories.publisher())
    ended: list[bool] = []

    def use(_: int) -> tuple[bool, int]:
        try:
            was_ended = bool(ended)
            return was_ended, client_with(token).get(SOME_LIST).status_code
        finally:
            forget_connection()

    with ThreadPoolExecutor(4) as threads:
        used = [threads.submit(use, n) for n in range(40)]
        issue.revoke(named(key), now=timezone.now())
        ended.append(True)
        used += [threads.submit(use, n) for n in range(40)]
        seen = {one.result() for one in used}
    assert {status for was_ended, status in seen if was_ended} == {401}
    assert {status for _, status in seen} <= {200, 401}
