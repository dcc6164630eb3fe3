"""Knowing that a poll at a real broker has its seat, by what the broker asks its database for."""

from typing import Any

from tests.real_broker import Broker
from tests.receiver import wait_until

LOOKS = """
    SELECT FROM pg_stat_activity WHERE query LIKE '%%AS w (subscriber_id, waiting)%%' AND pid <> pg_backend_pid()
       AND state_change > %(since)s
"""
"""The backend that has looked since then for what polls wait for."""


def now(broker: Broker) -> Any:
    """Return the database's time."""
    ((now,),) = broker.ask("SELECT clock_timestamp()")
    return now


def wait_until_somebody_waits(broker: Broker, since: Any) -> None:
    """Wait until a poll has its seat that came since, where none had one before."""
    wait_until(lambda: broker.ask(LOOKS, since=since))
