"""What workers take from Redis."""

import pickle

import pytest
from kombu.exceptions import ContentDisallowed
from kombu.serialization import loads

from broker_project.celery import app


def test_a_task_that_would_run_code_as_it_is_read_is_refused() -> None:
    with pytest.raises(ContentDisallowed):
        loads(pickle.dumps({}), "application/x-python-serialize", "binary", accept=app.conf.accept_content)
