"""Manners of a mailbox's clients, good and bad ones."""

import threading
from collections.abc import Sequence

from tests.faults.mailbox_clients import Client

MANY = 20
WORK_SECONDS = 0.5
LATE = 1.3
"""Times the time-out."""


def acknowledge(client: Client, receipts: Sequence[str]) -> None:
    """Do as one should."""
    client.say("ack", receipts)


def unhurriedly(client: Client, receipts: Sequence[str]) -> None:
    """Do as one should, but have them in hand for a while."""
    client.enough.wait(WORK_SECONDS if receipts else 0)
    client.say("ack", receipts)


def never(client: Client, receipts: Sequence[str]) -> None:
    """Keep them until the time is over, and longer."""
    if receipts:
        client.enough.wait(client.ack_seconds * LATE)


def late(client: Client, receipts: Sequence[str]) -> None:
    """Acknowledge when the time is over."""
    never(client, receipts)
    client.say("ack", receipts)


def give_back_some(client: Client, receipts: Sequence[str]) -> None:
    """Extend them all, return every other one, acknowledge the rest."""
    client.say("extend", receipts)
    client.say("nack", receipts[1::2])
    client.say("ack", receipts[::2])


def many_times(client: Client, receipts: Sequence[str]) -> None:
    """Acknowledge each many times at once."""
    threads = [threading.Thread(target=client.say, args=["ack", receipts]) for _ in range(MANY if receipts else 0)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
