"""The line of a callback whose original URL does not answer is told of like any other."""

from datetime import timedelta

import orjson
import pytest
from django.db.models.functions import Now
from django.test import Client

from delivery.announcements import HELD_SECONDS, tell_of_held_lines
from delivery.models import Line
from subscriptions.models import Publisher
from tests import factories
from tests.calling_back import called_back, job_type, post
from tests.driving import make_due, working
from tests.receiver import Receiver, answer, wait_until

THERE = "/done"


@pytest.mark.behaviour("5.7", "6.8")
def test_a_callbacks_line_held_for_over_a_minute_is_told_with_its_callback(
    storage: None, publisher: Publisher, client: Client, receiver: Receiver, long_pauses: None
) -> None:
    job_type()
    callback = called_back(client, receiver.url(THERE))
    factories.subscription(endpoint=receiver.url("/ops"), event_pattern="Broker.Line.*")
    receiver.on(THERE, answer(503))
    post(callback)
    lines = Line.objects.filter(callback=callback)
    with working():
        wait_until(lambda: lines.filter(lease_until=None, held_since__isnull=False).exists())
    lines.update(held_since=Now() - timedelta(seconds=HELD_SECONDS))
    assert (tell_of_held_lines(), tell_of_held_lines()) == (1, 0)
    receiver.on(THERE, answer(200))
    with working():
        make_due()
        wait_until(lambda: len(receiver.of("/ops")) == 2)
    told = [(one.headers["broker-event-type"], orjson.loads(one.body)) for one in receiver.of("/ops")]
    assert [(kind, says["callback"], "subscriber" in says) for kind, says in told] == [
        ("Broker.Line.Paused", callback.pk, False),
        ("Broker.Line.Resumed", callback.pk, False),
    ]
