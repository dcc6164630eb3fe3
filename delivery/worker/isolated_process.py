"""The program of an isolated process: send one request, and do with its answer all that a worker does."""

import os
import pickle  # nosec B403
import signal
import socket
import sys
from datetime import datetime
from typing import Final

from django.conf import settings

from delivery.http.client import HttpClient
from delivery.http.transfer import Answer
from delivery.webhook.request import Outgoing, add_sequence, request_of
from delivery.worker.isolation import READY, SECONDS, SharedLease
from delivery.worker.slots import RequestSent
from delivery.worker.topic import outcome_of, settlement_of

PARENT_SECONDS: Final = 0.1
"""How often it looks whether its worker lives: nobody else waits for the answer."""


def run() -> None:
    """Say that it is ready, send the request that the worker has left in the shared memory, and answer."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)  # whoever stops a worker lets its requests end
    parent, shared, descriptor = map(int, sys.argv[1:])
    with socket.socket(fileno=descriptor) as worker:
        worker.sendall(READY)
        if not worker.recv(1):
            return  # the worker has ended
        told = os.pread(shared, os.fstat(shared).st_size, SECONDS.size)
        delivery, sequence, started_at = pickle.loads(told)  # noqa: S301 - of our own program # nosec B301
        worker.sendall(pickle.dumps(_answer_to(delivery, sequence, started_at, SharedLease(shared), parent)))


def _answer_to(delivery: Outgoing, sequence: int, started_at: datetime, lease: SharedLease, parent: int) -> Answer:
    """Send a request and return its answer, once all has been made of it that a worker makes of it."""
    request = request_of(delivery, int(started_at.timestamp()))
    add_sequence(request, sequence)
    client = HttpClient(egress=settings.EGRESS_POLICY, deadline_seconds=delivery.destination.timeout_seconds)
    client.start(None, request, lease=lease)
    while not (answers := client.wait(PARENT_SECONDS)):
        if os.getppid() != parent:
            os._exit(0)  # nobody waits for the answer
    client.close()
    sent = RequestSent(answers[0], started_at)
    outcome_of(sent)
    settlement_of(0, delivery, sent)
    return answers[0]
