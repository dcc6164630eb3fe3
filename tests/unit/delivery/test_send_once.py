"""A volatile message on its way to one subscription, step by step, without any network."""

from collections.abc import Sequence
from typing import Any
from uuid import UUID

import pytest
import requests
from hypothesis import given
from hypothesis import strategies as st

from broker_project.core.encryption import Keyring
from delivery.http.headers import EncodedRequest
from delivery.http.transfer import Answer, RequestNotCompleted
from delivery.models import VolatileOutcome
from delivery.publish.store import NewMessage
from delivery.volatile.envelope import MAX_SECONDS, PURPOSE, Envelope
from delivery.volatile.send_once import FairSlots, send_line
from delivery.webhook.parts import Destination
from subscriptions.scripting.jobs import Failed, Job, Lost, Made, NotRun

pytestmark = pytest.mark.behaviour("2.9")

NOW = 1_700_000_000.25
SOMEBODY = 7
KEYS = Keyring(["s"], PURPOSE)


def parcel(ttl: float | None = None) -> Envelope:
    headers = [("X-Team", "blue")]
    message = NewMessage(3, "Shop.Order.Placed", b"[1]", "application/json", headers=headers, ttl=ttl)
    return Envelope.of(message, [SOMEBODY], key=UUID(int=7), now=NOW)


def destination(**fields: Any) -> Destination:
    return Destination(SOMEBODY, 1, "POST", "http://127.0.0.1:9/", {}, b"", **fields)


def answered(status: int) -> Answer:
    response = requests.Response()
    response.status_code = status
    return Answer("token", response, b"", 3)


def unanswered(token: str | None) -> Answer:
    return Answer(token, RequestNotCompleted("gone", was_sent=True), b"", 3)


def run(wanted: Destination | None, came: Sequence[object], *, at: float = NOW, ttl: float | None = None) -> Any:
    """Return what was asked for, what came of it being `came`, and what became of the message at the end."""
    asked: list[type] = []
    begun = send_line(parcel(ttl), wanted, lambda: at)
    try:
        step = next(begun)
        for one in came:
            asked.append(type(step))
            step = begun.send(one)
    except StopIteration as ended:
        return asked, ended.value
    return asked, None


@pytest.mark.parametrize(
    ("wanted", "came", "expected"),
    [
        (destination(), [answered(200)], ([EncodedRequest], VolatileOutcome.DELIVERED)),
        (destination(), [answered(299)], ([EncodedRequest], VolatileOutcome.DELIVERED)),
        (destination(), [answered(199)], ([EncodedRequest], VolatileOutcome.REFUSED)),
        (destination(), [answered(300)], ([EncodedRequest], VolatileOutcome.REFUSED)),
        (destination(), [answered(503)], ([EncodedRequest], VolatileOutcome.REFUSED)),
        (destination(), [unanswered("token")], ([EncodedRequest], VolatileOutcome.NO_ANSWER)),
        (destination(), [unanswered(None)], ([EncodedRequest], VolatileOutcome.LOST)),
        (None, [], ([], VolatileOutcome.SKIPPED)),
        (destination(half_open=True), [], ([], VolatileOutcome.SKIPPED)),
        (destination(script="1"), [Made(), answered(200)], ([Job, EncodedRequest], VolatileOutcome.DELIVERED)),
        (destination(script="1"), [Made(headers={"Host": "x"})], ([Job], VolatileOutcome.SKIPPED)),
        (destination(script="1"), [Failed("threw")], ([Job], VolatileOutcome.SKIPPED)),
        (destination(script="1"), [Lost("gone")], ([Job], VolatileOutcome.LOST)),
        (destination(script="1"), [NotRun()], ([Job], VolatileOutcome.DROPPED)),
    ],
)
def test_an_errand_ends_with_what_came_of_it(wanted: Destination | None, came: Sequence[object], expected: Any) -> None:
    assert run(wanted, came) == expected


@pytest.mark.behaviour("2.10")
@pytest.mark.parametrize(
    ("ttl", "waited", "outcome"),
    [
        (60, 59.999, VolatileOutcome.DELIVERED),
        (60, 60, VolatileOutcome.EXPIRED),
        (None, MAX_SECONDS - 0.001, VolatileOutcome.DELIVERED),
        (None, MAX_SECONDS, VolatileOutcome.EXPIRED),
        (2 * MAX_SECONDS, MAX_SECONDS, VolatileOutcome.EXPIRED),
    ],
)
def test_after_its_time_it_is_not_sent(ttl: float | None, waited: float, outcome: VolatileOutcome) -> None:
    _, ended = run(destination(), [answered(200)], at=NOW + waited, ttl=ttl)
    assert ended == outcome


@given(
    st.builds(
        Envelope,
        id=st.uuids().map(lambda one: f"vol_{one.hex}"),
        event_type_id=st.integers(1, 2**63 - 1),
        event_type=st.text(),
        body=st.binary(),
        content_type=st.text(),
        headers=st.lists(st.lists(st.text(), min_size=2, max_size=2)),
        subscription_ids=st.lists(st.integers(1, 2**63 - 1)),
        published_ms=st.integers(0, 2**63 - 1),
        seconds=st.floats(1, MAX_SECONDS),
    )
)
def test_a_parcel_comes_out_as_it_was_put_in(one: Envelope) -> None:
    assert Envelope.opened(one.id, one.sealed(KEYS), KEYS) == one


def test_what_arrives_is_known_by_the_message_and_the_subscription() -> None:
    one = parcel()
    request = next(send_line(one, destination(), lambda: NOW))
    assert isinstance(request, EncodedRequest)
    assert request.headers["webhook-id"] == f"{one.id}_{SOMEBODY}"
    assert request.headers["webhook-timestamp"] == str(int(NOW))
    assert (request.body, request.headers["X-Team"], one.hour) == (b"[1]", "blue", 1_699_999_200)


@given(st.integers(1, 12), st.lists(st.tuples(st.integers(1, 3), st.booleans())))
def test_no_more_have_places_than_there_are_and_none_has_too_many(most: int, acts: list[tuple[int, bool]]) -> None:
    places, taken = FairSlots(most, max_bytes=0), [0, 0, 0, 0]
    for owner, comes in acts:
        if comes:
            is_free = sum(taken) < most and taken[owner] < max(1, most // 4)
            assert places.take(owner, 0) == is_free
            taken[owner] += is_free
        elif taken[owner]:
            places.leave(owner, 0)
            taken[owner] -= 1
    assert places.wait_until_empty(0) == (sum(taken) == 0)


@pytest.mark.behaviour("11.1")
@given(st.lists(st.tuples(st.integers(1, 6), st.integers(0, 40))))
def test_no_more_bytes_are_in_flight_than_may_be_and_none_has_too_many(acts: list[tuple[int, int]]) -> None:
    places = FairSlots(1_000, max_bytes=100)
    taken: list[tuple[int, int]] = []
    for owner, size in acts:
        of_owner = sum(held for whose, held in taken if whose == owner)
        is_free = sum(held for _, held in taken) + size <= 100 and of_owner + size <= 25
        assert places.take(owner, size) == is_free
        taken += [(owner, size)] * is_free
    for owner, size in taken:
        places.leave(owner, size)
    assert [places.take(owner, 25) for owner in range(1, 6)] == [True] * 4 + [False]
