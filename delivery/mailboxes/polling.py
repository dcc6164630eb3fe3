"""Fetching with patience: what there is, or as soon as there is something (behaviour 9.1)."""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import NamedTuple

from delivery.mailboxes.fetching import fetch
from delivery.mailboxes.hand_outs import Box, Fetched
from delivery.mailboxes.looking_out import look_out_for
from delivery.waking.polls import HERE, Poll, Room
from subscriptions.database import forget_connection

Departure = Callable[[], "Future[None]"]
"""Begins to watch the client, and returns what is done once it has hung up."""


class Polled(NamedTuple):
    """What a poll has got."""

    messages: list[Fetched]
    was_seated: bool = True
    """False: it did not wait as long as it was to, since there was no seat for it, or not until the end."""
    waited: float = 0.0
    """Seconds from the call to the fetch that brought something: no message was handed out before."""


def next_messages(box: Box, *, most: int, wait: float, departure: Departure = Future, room: Room = HERE) -> Polled:
    """Fetch `most` messages at most; where there is none, wait up to `wait` seconds for the first to come.

    Whoever waits holds no connection; a client that hangs up gets nothing any more, for it would be lost on it.
    """
    messages = fetch(box, most=most)
    if messages or not wait:
        return Polled(messages)
    with room.seat(box.subscriber_id) as poll:
        if poll is None:
            return Polled([], was_seated=False)
        look_out_for(room)
        with _let_go_at(departure, poll):
            return _first_to_come(box, poll, most=most, wait=wait)


def _first_to_come(box: Box, poll: Poll, *, most: int, wait: float) -> Polled:
    began = time.monotonic()
    forget_connection()
    while poll.wait(began + wait - time.monotonic()):
        waited = time.monotonic() - began
        if messages := fetch(box, most=most):
            return Polled(messages, waited=waited)
        forget_connection()
    return Polled([], was_seated=not poll.is_let_go)


@contextmanager
def _let_go_at(departure: Departure, poll: Poll) -> Iterator[None]:
    gone = departure()
    gone.add_done_callback(lambda _: poll.let_go())
    try:
        yield
    finally:
        gone.cancel()
