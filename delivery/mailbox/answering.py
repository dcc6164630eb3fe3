"""What clients say of what they have fetched: acknowledged, given back, prolonged; by receipt (behaviour 9.2, 9.4)."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, LiteralString

from django.db import transaction

from broker_project.core.db import rows
from delivery.dispatch import notify
from delivery.mailbox import long_poll, results
from delivery.mailbox.acknowledge import ACKNOWLEDGE, ELSEWHERE, EXTEND, GIVE_BACK
from delivery.mailbox.fetch_messages import LOCK
from delivery.mailbox.mailbox import Receipt
from delivery.mailbox.results import Filed, Open, Result
from delivery.statuses import DeliveryStatus

MOST_RECEIPTS: Final = 1_000
"""In one call."""

Found = dict[Receipt, Open | Filed]


def acknowledge(subscriber_id: int, receipts: Sequence[Receipt]) -> dict[Receipt, Result]:
    """End as DELIVERED what the receipts name, `MOST_RECEIPTS` at most."""
    asked = _arguments(subscriber_id, receipts)
    return _answered(receipts, _found(asked, _open(ACKNOWLEDGE, asked)), results.acknowledged)


def give_back(subscriber_id: int, receipts: Sequence[Receipt], *, not_attempted: bool = False) -> dict[Receipt, Result]:
    """Make available at once what the receipts name; or end it, if its redeliveries are used up or it is cancelled.

    What is `not_attempted`, since its client has not begun it, is available again however often it was handed out.
    """
    asked = _arguments(subscriber_id, receipts)
    open_ones = _open(GIVE_BACK, asked | {"uncertain": False, "not_attempted": not_attempted})
    notify.wake(notify.TOPIC, sorted({one.woken_line for one in open_ones if one.woken_line}))
    long_poll.hint([subscriber_id])
    return _answered(receipts, _found(asked, open_ones), results.given_back)


def extend(subscriber_id: int, receipts: Sequence[Receipt], *, seconds: int) -> dict[Receipt, Result]:
    """Keep in flight what the receipts name for so many seconds from now on, if that is longer."""
    asked = _arguments(subscriber_id, receipts)
    with transaction.atomic():
        rows(LOCK, [subscriber_id])
        open_ones = _open(EXTEND, asked | {"seconds": seconds})
    return _answered(receipts, _found(asked, open_ones), results.extended)


def _arguments(subscriber_id: int, receipts: Sequence[Receipt]) -> dict[str, Any]:
    asked = sorted({*receipts})
    return {
        "subscriber": subscriber_id,
        "ids": [receipt.delivery_id for receipt in asked],
        "fetches": [receipt.fetch for receipt in asked],
    }


def _open(statement: LiteralString, arguments: dict[str, Any]) -> list[Open]:
    return [Open(*row)._replace(status=DeliveryStatus(row[4])) for row in rows(statement, arguments)]


def _found(asked: dict[str, Any], handed_out: Sequence[Open]) -> Found:
    """Look up whatever is handed out no more: it is finished, or waits, or is being sent."""
    found = _by_receipt(handed_out)
    if len(found) < len(asked["ids"]):
        found = _by_receipt(_elsewhere(*row) for row in rows(ELSEWHERE, asked)) | found
    return found


def _by_receipt(known: Iterable[Open | Filed]) -> Found:
    return {Receipt(one.delivery_id, one.fetch): one for one in known}


def _elsewhere(delivery_id: int, fetch: int, newest: int, status: str, is_open: bool, was_out: bool) -> Open | Filed:
    if is_open:
        return Open(delivery_id, fetch, newest, counts=False, status=DeliveryStatus(status))
    return Filed(delivery_id, fetch, newest, DeliveryStatus(status), was_out)


def _answered(
    receipts: Sequence[Receipt], found: Found, answer: Callable[[Open | Filed | None], Result]
) -> dict[Receipt, Result]:
    return {receipt: answer(found.get(receipt)) for receipt in receipts}
