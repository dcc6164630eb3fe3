"""Fetching with patience: what there is, or as soon as there is something (behaviour 9.1)."""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import NamedTuple

from broker_project.core.db import give_connection_back
from delivery.mailbox.fetching import fetch
from delivery.mailbox.hand_outs import Box, Fetched
from delivery.mailbox.long_poll import HERE, Poll, Room
from delivery.mailbox.looking_out import look_out_for

Departure = Callable[[], "Future[None]"]
"""Begins to watch the client, and returns what is done once it has hung up."""


class Polled(NamedTuple):
    """What a poll has got."""

    messages: list[Fetched]
    was_seated: bool = True
    """False: it did not wait as long as it was to, since there was no seat for it, or not until the end."""
    waited: float = 0.0
    """Seconds from the call to the fetch that brought something: no message was handed out before."""


def next_messages(
    box: Box,
    *,
    most: int,
    wait: float,
    departure: Departure = Future,
    may_fetch: Callable[[], bool] = lambda: True,
    room: Room = HERE,
) -> Polled:
    """Fetch `most` messages at most; where there is none, wait up to `wait` seconds for the first to come.

    Whoever waits holds no connection. A client that hangs up meanwhile gets nothing any more, for it would be lost on
    it; nor does one that may fetch no longer, which is asked before each fetch but the first.
    """
    messages = fetch(box, most=most)
    if messages or not wait:
        return Polled(messages)
    with room.seat(box.subscriber_id) as poll:
        if poll is None:
            return Polled([], was_seated=False)
        look_out_for(room)
        with _let_go_at(departure, poll):
            return _first_to_come(box, poll, most=most, wait=wait, may_fetch=may_fetch)


def _first_to_come(box: Box, poll: Poll, *, most: int, wait: float, may_fetch: Callable[[], bool]) -> Polled:
    began = time.monotonic()
    give_connection_back()
    while poll.wait(began + wait - time.monotonic()):
        waited = time.monotonic() - began
        if not may_fetch():
            break
        if messages := fetch(box, most=most):
            return Polled(messages, waited=waited)
        give_connection_back()
    return Polled([], was_seated=not poll.is_let_go)


@contextmanager
def _let_go_at(departure: Departure, poll: Poll) -> Iterator[None]:
    gone = departure()
    gone.add_done_callback(lambda _: poll.let_go())
    try:
        yield
    finally:
        gone.cancel()
