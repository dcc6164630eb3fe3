"""From what was delivered to its summary: asked for, done by the worker of the queue `analytics`, with Spark.

Beside the other tests with Spark, and not those with a broker: what takes a minute of both cores is done meanwhile.
"""

import os
import subprocess
import sys

from broker_project.stack.folders import ROOT
from broker_project.stack.load.receiver import Receiver
from broker_project.stack.load.wait import wait_until
from tests.support.real_broker import TIMEOUT_SECONDS, Broker

EVENTS = 5
SPARK_SECONDS = 300.0
"""Spark has what CPU others leave."""
ASK = """
import datetime, django
django.setup()
from analytics import run_requests
now = run_requests.now()
print(run_requests.request_range(now - datetime.timedelta(minutes=5), now).pk)
"""


def ask_for_a_summary(broker: Broker) -> int:
    """Ask for the last five minutes, as the admin does; return the run."""
    asked = subprocess.run(
        [sys.executable, "-c", ASK],
        cwd=ROOT,
        env={**os.environ, **broker.stack.environment},
        stdout=subprocess.PIPE,
        check=True,
    )
    return int(asked.stdout)


def test_delivered_messages_appear_in_the_summaries(broker: Broker, receiver: Receiver) -> None:
    event_type = broker.event_type()
    subscriber = broker.subscribe(receiver.url("/a"), event_type)
    publisher = broker.publisher()
    for number in range(EVENTS):
        publisher.post(f"{broker.web}/api/v1/events/{event_type}", json={"number": number}, timeout=TIMEOUT_SECONDS)
    wait_until(lambda: broker.has_finished([subscriber]), TIMEOUT_SECONDS)
    run = ask_for_a_summary(broker)

    def state() -> str:
        ((found,),) = broker.ask("SELECT state FROM analytics_run WHERE id = %(run)s", run=run)
        return str(found)

    wait_until(lambda: state() not in {"WAITING", "RUNNING"}, SPARK_SECONDS)
    found = broker.ask("SELECT state, error, log FROM analytics_run WHERE id = %(run)s", run=run)
    assert found[0][:2] == ("PASSED", ""), found
    summed = broker.ask(
        "SELECT sum(deliveries), sum(delivered), sum(attempts) FROM analytics_reliability WHERE event_type = %(name)s",
        name=event_type,
    )
    assert [tuple(map(int, row)) for row in summed] == [(EVENTS, EVENTS, EVENTS)]
    audited = broker.ask(
        "SELECT sum(checked), sum(inversions), sum(duplicates) FROM analytics_audit WHERE subscriber = %(name)s",
        name=subscriber.name,
    )
    assert [tuple(map(int, row)) for row in audited] == [(EVENTS, 0, 0)]
