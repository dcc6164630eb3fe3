"""What operators rely on: health, queues that somebody consumes."""

import pytest
import requests
from celery import Celery
from django.conf import settings

from tests.real_broker import TIMEOUT, Broker

pytestmark = pytest.mark.faults


def worker_names(broker: Broker) -> set[str]:
    """Return those that deliver, and the one that summarizes."""
    workers = (*broker.workers(), broker.stack.supervisor["analytics"])
    return {f"celery@{worker.service.environment['BROKER_WORKER_NAME']}" for worker in workers}


def test_health_says_that_all_is_well(broker: Broker) -> None:
    live, ready = (requests.get(f"{broker.web}/{path}", timeout=TIMEOUT) for path in ("livez", "readyz"))
    assert (live.status_code, live.json()) == (200, {"status": "ok"})
    assert (ready.status_code, set(ready.json().values())) == (200, {"ok"})


@pytest.mark.behaviour("4.14")
def test_every_declared_queue_is_consumed_that_of_summaries_by_a_worker_of_its_own(broker: Broker) -> None:
    declared = {queue.name for queue in settings.CELERY_TASK_QUEUES}
    workers = worker_names(broker)
    with Celery(broker=broker.stack.environment["REDIS_URL"], set_as_current=False) as asking:
        answers = asking.control.inspect(timeout=TIMEOUT, limit=len(workers)).active_queues() or {}
    consumed = {name: {queue["name"] for queue in queues} for name, queues in answers.items()}
    summarizing = {name for name in workers if name.startswith("celery@analytics.")}
    assert consumed == {name: {"analytics"} if name in summarizing else declared - {"analytics"} for name in workers}
    assert len(summarizing) == 1
