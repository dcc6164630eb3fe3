"""What does not answer is not ready, whatever stands in the way."""

import threading
from collections.abc import Iterator

import pytest
import redis
from django.conf import settings

from broker_project.stack.ports import any_free
from broker_project.stack.services import answers, is_listening, lets_in


def test_where_nobody_listens_nothing_is_ready() -> None:
    port = any_free()
    assert not is_listening(f"redis://127.0.0.1:{port}/0", "celery@worker")
    assert not answers(f"http://127.0.0.1:{port}/")
    assert not lets_in(f"http://127.0.0.1:{port}/", "name:password")


ANOTHER = 15
"""The database that nobody else uses."""


@pytest.fixture
def cut_off() -> Iterator[str]:
    """Return the address of a Redis that ends each connection soon after it was made."""
    enough = threading.Event()

    def end() -> None:
        with redis.Redis.from_url(settings.REDIS_URL) as client:
            while not enough.wait(0.02):
                for one in client.client_list():
                    if int(one["db"]) == ANOTHER:
                        client.client_kill_filter(_id=one["id"])

    ending = threading.Thread(target=end)
    ending.start()
    yield f"{settings.REDIS_URL.rpartition('/')[0]}/{ANOTHER}"
    enough.set()
    ending.join()


def test_a_worker_is_not_ready_whose_redis_goes_away_meanwhile(cut_off: str) -> None:
    assert not any(is_listening(cut_off, "celery@worker") for _ in range(3))
