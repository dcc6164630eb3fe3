"""A volatile message on its way to one subscription, step by step, without any network."""

from collections.abc import Sequence
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker_project.core.encryption import Keyring
from delivery.http.transfer import Answer, EncodedRequest, RequestNotCompleted
from delivery.models import VolatileOutcome
from delivery.publish.store import NewMessage
from delivery.volatile.publish_volatile import MAX_SECONDS, PURPOSE, Envelope, envelope_of
from delivery.volatile.send_once import send_to
from delivery.webhook.destination import Destination
from subscriptions.scripting.jobs import Failed, Job, Lost, Made, NotRun

pytestmark = pytest.mark.behaviour("2.9")

NOW = 1_700_000_000.25
SUBSCRIPTION_ID = 7
KEYS = Keyring(["s"], PURPOSE)


def envelope(ttl: float | None = None) -> Envelope:
    headers = [("X-Team", "blue")]
    message = NewMessage(
        event_type_id=3,
        event_type="Shop.Order.Placed",
        body=b"[1]",
        content_type="application/json",
        headers=headers,
        ttl=ttl,
    )
    return envelope_of(message, [SUBSCRIPTION_ID], key=UUID(int=7), now=NOW)


def destination(**fields: Any) -> Destination:
    return Destination(SUBSCRIPTION_ID, 1, "POST", "http://127.0.0.1:9/", {}, b"", **fields)


def answered(status: int) -> Answer:
    return Answer("token", status, b"", b"", 3)


def unanswered(token: str | None) -> Answer:
    return Answer(token, 0, b"", b"", 3, RequestNotCompleted("gone", was_sent=True))


def run(wanted: Destination | None, came: Sequence[object], *, at: float = NOW, ttl: float | None = None) -> Any:
    """Return the types of the steps if their results are `came`, and the outcome."""
    asked: list[type] = []
    begun = send_to(envelope(ttl), wanted, lambda: at)
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
def test_outcomes_of_scripts_and_answers(wanted: Destination | None, came: Sequence[object], expected: Any) -> None:
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
def test_an_expired_message_is_not_sent(ttl: float | None, waited: float, outcome: VolatileOutcome) -> None:
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
        expires_ms=st.integers(0, 2**63 - 1),
    )
)
def test_an_envelope_is_opened_as_it_was_sealed(one: Envelope) -> None:
    assert Envelope.decrypted(one.id, one.encrypted(KEYS), KEYS) == one
