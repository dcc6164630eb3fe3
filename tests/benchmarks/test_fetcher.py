"""Those who fetch say what a mailbox does wrong, whatever the broker: here it is played."""

import json
from collections.abc import Iterator

import pytest

from benchmarks.children import RunningConsumers, fetching
from benchmarks.connection import body_of
from benchmarks.mailbox_client import Errand
from benchmarks.scenarios.mailbox import faults
from tests.receiver import Receiver, answer, wait_until

NEXT, ACK = "/api/v1/mailboxes/box/next", "/api/v1/mailboxes/box/ack"
STREAM, DIED = 1, 2
NOTHING = answer(204)


def handed_out(stream: int, redeliveries: int) -> bytes:
    """Return the answer to a fetch."""
    message = {"receipt": "one", "body": body_of(stream, 1, 0).decode(), "redeliveries": redeliveries}
    return json.dumps({"messages": [message]}).encode()


@pytest.fixture
def consumers(receiver: Receiver, request: pytest.FixtureRequest) -> Iterator[RunningConsumers]:
    """One who wants to wait as long as the test says, or else not at all; nothing is there yet."""
    receiver.on(NEXT, NOTHING)
    receiver.on(ACK, answer(body=b'{"results": [{"code": "acknowledged"}]}'))
    with fetching(Errand(receiver.url(""), "token", "box", 1, 1, getattr(request, "param", 0), again=DIED)) as running:
        yield running


@pytest.mark.parametrize("consumers", [20], indirect=True)
def test_who_wants_to_wait_and_is_not_let_wait_says_so(consumers: RunningConsumers) -> None:
    wait_until(lambda: any("wanted to wait" in text for text in faults(consumers.report())))


def test_who_does_not_want_to_wait_gets_nothing_without_complaint(consumers: RunningConsumers) -> None:
    wait_until(lambda: consumers.report().in_vain)
    assert faults(consumers.end()) == []


@pytest.mark.parametrize(
    ("stream", "redeliveries", "wrong"),
    [
        (STREAM, 0, []),
        (STREAM, 1, ["1 times a wrong number of redeliveries"]),
        (DIED, 1, []),
        (DIED, 0, ["1 times a wrong number of redeliveries"]),
        (DIED, 2, ["1 times a wrong number of redeliveries"]),
    ],
)
def test_what_others_had_comes_again_once_and_nothing_else_does(
    receiver: Receiver, consumers: RunningConsumers, stream: int, redeliveries: int, wrong: list[str]
) -> None:
    receiver.on(NEXT, answer(body=handed_out(stream, redeliveries)), NOTHING)
    wait_until(lambda: consumers.delivered)
    assert faults(consumers.end()) == wrong
