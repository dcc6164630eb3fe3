"""Handing out what is available, oldest first, each to one client (behaviour 9.1, 9.3)."""

from collections.abc import Sequence
from contextlib import nullcontext
from datetime import datetime
from typing import Final, NamedTuple

from django.db import transaction

from delivery.mailboxes.fetch_statements import FETCH, LOCK
from delivery.mailboxes.hand_outs import Box, Fetched
from delivery.webhooks.cloud_events import enveloped
from delivery.webhooks.contents import read_contents
from subscriptions.database import rows

REACH: Final = 5
"""How many times as many as are wanted are looked at: as many clients may be at the front at the same time."""
LEAST_REACH: Final = 50
TRIES: Final = 3
"""How often it is asked anew where others have taken all that was near the front."""


class _Row(NamedTuple):
    """A delivery as it is handed out."""

    id: int
    fetch: int
    subscription_id: int
    until: datetime
    is_uncertain: bool
    message_id: int
    output: str


class _Answer(NamedTuple):
    """What the database says to one fetch."""

    is_ordered: bool | None
    """None: the subscriber is gone."""
    is_any: bool
    """Whether anything was available."""
    handed_out: Sequence[_Row]


def fetch(box: Box, *, most: int) -> list[Fetched]:
    """Hand out the oldest available messages, `most` of them at most, in order of id; durably before it returns.

    Empty: there is nothing, or an ordered mailbox has one in flight.
    """
    for _ in range(TRIES):
        answer = _hand_out(box, most=most)
        if answer.handed_out:
            return _with_contents(answer.handed_out)
        if not answer.is_any and answer.is_ordered in {box.is_ordered, None}:
            break
        box = box._replace(is_ordered=bool(answer.is_ordered))
    return []


def _hand_out(box: Box, *, most: int) -> _Answer:
    most = 1 if box.is_ordered else most
    with transaction.atomic() if box.is_ordered else nullcontext():
        if box.is_ordered:
            rows(LOCK, [box.subscriber_id])
        found = rows(
            FETCH,
            {
                "subscriber": box.subscriber_id,
                "ordered": box.is_ordered,
                "most": most,
                "reach": LEAST_REACH + REACH * most,
            },
        )
    is_ordered, is_any, *_ = found[0]
    return _Answer(is_ordered, is_any, [_Row(*row) for _, _, *row in found if row[0] is not None])


def _with_contents(handed_out: Sequence[_Row]) -> list[Fetched]:
    """Add what is delivered; what has lost its message is left to its time-out."""
    contents = {one.message_id: one for one in read_contents({row.message_id for row in handed_out})}
    return [
        Fetched(
            row.id,
            row.fetch,
            row.subscription_id,
            row.until,
            enveloped(contents[row.message_id], row.output, {}),
            row.is_uncertain,
        )
        for row in handed_out
        if row.message_id in contents
    ]
