"""Handing out what is available, oldest first, each to one client (behaviour 9.1, 9.3)."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple

import structlog
from django.db import transaction

from broker_project.core.db import rows
from delivery.mailbox.fetch_messages import FETCH, FETCH_IN_ORDER, LOCK
from delivery.mailbox.hand_outs import Box, Fetched
from delivery.webhook.cloud_event_output import enveloped
from delivery.webhook.content import content_in
from delivery.webhook.parts import Content

REACH: Final = 5
"""How many times as many as are wanted are looked at first: others may be at the front at the same time."""
LEAST_REACH: Final = 50
FAR: Final = 1_000
"""How many are looked at once others have had all of those: ten of whoever fetches the most that there may be."""
TRIES: Final = 3
"""How often it is asked where others have had all that was near the front."""

DELIVERY, MESSAGE = 2, 10
"""Where in a row the delivery begins, and where its message."""

log = structlog.get_logger(__name__)


class _Row(NamedTuple):
    """A delivery as it is handed out."""

    id: int
    fetch: int
    subscription_id: int
    until: datetime
    seconds: float
    is_uncertain: bool
    message_id: int
    output: str
    content: Content | None
    """None: its message is lost."""


class _Answer(NamedTuple):
    """What the database says to one fetch."""

    is_ordered: bool | None
    """None: the subscriber is gone."""
    is_any: bool
    """Whether anything was available."""
    handed_out: Sequence[_Row]


def fetch(box: Box, *, most: int) -> list[Fetched]:
    """Hand out the oldest available messages, `most` of them at most, in order of id; durably before it returns.

    Empty: there is nothing, or somebody holds one of an ordered mailbox.
    """
    reach = LEAST_REACH + REACH * most
    for _ in range(TRIES):
        answer = _hand_out(box, most=most, reach=reach)
        if answer.handed_out:
            return _told(answer.handed_out)
        if not answer.is_any and answer.is_ordered in {box.is_ordered, None}:
            break
        box, reach = box._replace(is_ordered=bool(answer.is_ordered)), FAR
    return []


def _hand_out(box: Box, *, most: int, reach: int) -> _Answer:
    asked = {"subscriber": box.subscriber_id, "most": most, "reach": reach}
    found = _in_order(box) if box.is_ordered else rows(FETCH, asked)
    is_ordered, is_any, *_ = found[0]
    return _Answer(is_ordered, is_any, [_row(row) for row in found if row[DELIVERY] is not None])


def _row(row: Sequence[Any]) -> _Row:
    content = None if row[MESSAGE] is None else content_in(row[MESSAGE:])
    return _Row._make([*row[DELIVERY:MESSAGE], content])


def _in_order(box: Box) -> list[Any]:
    with transaction.atomic():
        rows(LOCK, [box.subscriber_id])
        return rows(FETCH_IN_ORDER, {"subscriber": box.subscriber_id})


def _told(handed_out: Sequence[_Row]) -> list[Fetched]:
    """Return them as they are told; what has lost its message, which nothing should bring about, times out."""
    if lost := [row.id for row in handed_out if row.content is None]:
        log.error("mailboxes.message_missing", delivery_ids=lost)
    return [
        Fetched(
            row.id,
            row.fetch,
            row.subscription_id,
            row.until,
            row.seconds,
            enveloped(row.content, row.output, {}),
            row.is_uncertain,
        )
        for row in handed_out
        if row.content
    ]
