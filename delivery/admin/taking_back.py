"""Taking back what a mailbox's clients do not answer: what is asked before, and what is said of it after."""

import re
from collections import Counter
from collections.abc import Sequence
from http import HTTPStatus
from typing import Final, NamedTuple

from django.contrib import messages

from broker_project.core.admin.read_only import is_id
from delivery.admin.mailbox_work import handed_out, so_many, standing_of
from delivery.mailbox.answering import MOST_RECEIPTS, give_back
from delivery.mailbox.available import end_in_vain
from delivery.mailbox.mailbox import Receipt
from delivery.mailbox.results import ReceiptCode
from delivery.models import Delivery, Mailbox
from delivery.statuses import DeliveryStatus

CHOSEN: Final = re.compile(r"(\d{1,18})\.(\d{1,9})", re.ASCII)
"""A delivery, and the number of the hand-out."""
WHY: Final = {DeliveryStatus.CANCELLED: "as was asked", DeliveryStatus.FAILED: "its redeliveries are used up"}


class HandOut(NamedTuple):
    """A hand-out that may be returned, as a form shows and sends it: only the newest of a delivery counts."""

    pk: str
    text: str
    ends: str
    """As what its delivery ends if it is returned; empty: it is available again."""

    def __str__(self) -> str:
        """Return it in words."""
        return f"{self.text}: {self.ends}" if self.ends else self.text


def wanted_of(box: Mailbox, asked: str) -> list[HandOut]:
    """Return what may be returned: the delivery that is asked for, or what is next to time out, as much as is shown."""
    return [_hand_out(box, one) for one in handed_out(box, only=int(asked) if is_id(asked) else None)]


def none_of(asked: str) -> str:
    """Return what is said where nothing of it is in flight."""
    return f"Delivery {asked} is not in flight." if is_id(asked) else "Nothing of it is in flight."


def question_of(box: Mailbox, chosen: Sequence[HandOut], asked: str) -> str:
    """Return what is asked before these are returned: how many of how many, and how many of them end by it."""
    ending = sum(bool(one.ends) for one in chosen)
    if is_id(asked):
        then = "It ends by that." if ending else "Whoever fetches next gets it."
        return f"Return this? Its client may be at work on it, and its receipt counts no more. {then}"
    then = (
        f"{len(chosen) - ending} will be available again, {ending} will end."
        if ending
        else "Whoever fetches next gets them."
    )
    which = _so_many_of(box, len(chosen))
    return f"Return {which}? Clients may be at work on them, and their receipts count no more. {then}"


def _so_many_of(box: Mailbox, shown: int) -> str:
    out = standing_of(box).in_flight
    return f"all {shown} in flight" if out <= shown else f"the {shown} next to time out, of {so_many(out)} in flight"


def given_back(box: Mailbox, chosen: Sequence[str]) -> tuple[str, int]:
    """Return what was shown and is in flight still; say what became of it, and at which level."""
    named = filter(None, map(CHOSEN.fullmatch, chosen[:MOST_RECEIPTS]))
    receipts = [Receipt(*map(int, one.groups())) for one in named]
    done = Counter(one.code for one in give_back(box.pk, receipts).values() if one.status == HTTPStatus.OK)
    failed, cancelled = done[ReceiptCode.FAILED], done[ReceiptCode.CANCELLED]
    note = f"Returned {done[ReceiptCode.RETURNED]} of {len(receipts)}"
    note += f"; {failed} {'has' if failed == 1 else 'have'} FAILED, redeliveries used up" if failed else ""
    note += f"; {cancelled} {'is' if cancelled == 1 else 'are'} CANCELLED, as was asked" if cancelled else ""
    return f"{note}.", messages.SUCCESS if done else messages.WARNING


def _hand_out(box: Mailbox, one: Delivery) -> HandOut:
    times = "once" if one.fetches == 1 else f"{one.fetches} times"
    end = end_in_vain(cancel_requested=one.cancel_requested, fetches=one.fetches, limit=box.max_redeliveries)
    ends = f"ends as {end}, {WHY[end]}" if end else ""
    return HandOut(f"{one.pk}.{one.fetches}", f"delivery {one.pk}, handed out {times}", ends)
