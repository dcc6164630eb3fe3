"""A receiver that follows delivery.md word by word processes each delivery once, and loses none."""

import asyncio
import sqlite3
from pathlib import Path

import pytest
import requests

from broker_project.stack.load.receiver import Behaviour, Receiver, answer
from broker_project.stack.load.wait import PATIENCE_SECONDS, wait_until
from delivery.models import Delivery
from subscriptions.models import RetryPolicy, Subscription
from tests.support import broker
from tests.support.documented_programs import running_receiver

PAGE = "reference/delivery.md"


def passing_on(receiver: Receiver, url: str, *, loses_answer: bool = False) -> Behaviour:
    """Let the program at `url` process the request; pass its answer on, or close the connection without it."""

    async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        request = receiver.log[-1]
        answered = await asyncio.to_thread(
            requests.post, url, request.body, headers=request.headers, timeout=PATIENCE_SECONDS
        )
        return not loses_answer and await answer(answered.status_code)(reader, writer)

    return pass_on


@pytest.mark.behaviour("4.10", "4.11")
@pytest.mark.parametrize("policy", ["TeamForge", "Workfront"])
def test_what_comes_late_is_processed_and_what_comes_twice_is_dropped(
    receiver: Receiver, wanted: Subscription, long_pauses: None, policy: str, tmp_path: Path
) -> None:
    """The first is deferred, or retried apart, and so comes after the second, with the lower number.

    The second is processed, and its answer is lost: the broker repeats it.
    """
    Subscription.objects.update(retry_policy=RetryPolicy.objects.get(name=policy))
    with running_receiver(PAGE, DATABASE=str(tmp_path / "orders")) as url, broker.running_worker():
        receiver.on("/a", answer(500), passing_on(receiver, url, loses_answer=True), passing_on(receiver, url))
        broker.publish_numbered(wanted.event_type, 1)
        wait_until(Delivery.objects.open().filter(waits_for="RETRY").exists)
        broker.publish_numbered(wanted.event_type, 3, first=1)
        wait_until(lambda: b"1" in receiver.bodies("/a"))
        broker.cut_pauses_until_done()
    assert sorted(processed(tmp_path)) == [b"0", b"1", b"2", b"3"]
    came = [request.body for request in receiver.of("/a")]
    assert sorted(came) == [b"0", b"0", b"1", b"1", b"2", b"3"]
    assert [request.is_flagged for request in receiver.of("/a") if request.body == b"1"] == [False, True]
    numbers = {request.body: request.sequence for request in receiver.of("/a")}
    assert numbers == {b"0": 1, b"1": 2, b"2": 3, b"3": 4}
    assert came.index(b"1") < len(came) - 1 - came[::-1].index(b"0"), "a lower number came after a higher one"


def processed(folder: Path) -> list[bytes]:
    with sqlite3.connect(folder / "orders") as database:
        return [body for (body,) in database.execute("SELECT body FROM orders ORDER BY rowid")]
