"""Publishing: a message and a delivery for every subscription that qualifies, in one transaction (behaviour 2.1)."""

from collections.abc import Sequence
from dataclasses import replace

from django.db import transaction

from delivery.idempotency import Earlier, KeyReusedError, claim_key, remember
from delivery.storing import Accepted, NewMessage, store


class ItemKeyReusedError(KeyReusedError):
    """The idempotency key of the item at `position` stands for another publish."""

    def __init__(self, position: int) -> None:
        super().__init__(f"item {position}")
        self.position = position


def publish(messages: Sequence[NewMessage], *, publisher_id: int | None, key_hours: int) -> list[Accepted]:
    """Store the messages in their order, all or none, and wake the lines that got something.

    Returns one answer a message, in order, once everything is durable.

    Raises:
        PublishUnderWayError: a publish with one of the idempotency keys is still running.
        ItemKeyReusedError: a key stands for another publish.

    """
    with transaction.atomic():
        known = _known(messages, publisher_id)
        new = [position for position in range(len(messages)) if position not in known]
        stored = dict(zip(new, store([messages[position] for position in new], publisher_id), strict=True))
        for position, answer in stored.items():
            _remember(messages[position], answer, publisher_id, key_hours)
    return [
        stored[position] if position in stored else _replayed(known[position], stored)
        for position in range(len(messages))
    ]


def _known(messages: Sequence[NewMessage], publisher_id: int | None) -> dict[int, Earlier | int]:
    """Return what was answered before, by position; a number names the item of this batch that comes first."""
    known: dict[int, Earlier | int] = {}
    first: dict[str, int] = {}
    for position, message in enumerate(messages):
        if message.idempotency_key is None:
            continue
        sibling = first.setdefault(message.idempotency_key, position)
        if earlier := _claim(position, message, messages[sibling], publisher_id):
            known[position] = earlier
        elif sibling != position:
            known[position] = sibling
    return known


def _claim(position: int, message: NewMessage, sibling: NewMessage, publisher_id: int | None) -> Earlier | None:
    if message.fingerprint != sibling.fingerprint:
        raise ItemKeyReusedError(position)
    try:
        return claim_key(publisher_id, message.idempotency_key or "", message.fingerprint)
    except KeyReusedError:
        raise ItemKeyReusedError(position) from None


def _replayed(known: Earlier | int, stored: dict[int, Accepted]) -> Accepted:
    if isinstance(known, Earlier):
        return Accepted(*known, replayed=True)
    return replace(stored[known], replayed=True)


def _remember(message: NewMessage, answer: Accepted, publisher_id: int | None, key_hours: int) -> None:
    if message.idempotency_key is not None:
        earlier = Earlier(answer.id, answer.outcome, answer.deliveries)
        remember(publisher_id, message.idempotency_key, message.fingerprint, earlier, hours=key_hours)
