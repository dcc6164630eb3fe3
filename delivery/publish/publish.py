"""Publishing: a message and a delivery for every subscription that qualifies, in one transaction (contract 2.1)."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from django.db import transaction

from delivery.callbacks.address import CallbackTerms
from delivery.callbacks.create import CallbackRequest, CallbackTarget, create_callbacks, targets_of
from delivery.publish.idempotency import Earlier, RememberedAnswer, claim_keys, remember
from delivery.publish.open_messages import room_for
from delivery.publish.store import Accepted, NewMessage, store


class KeyReusedError(Exception):
    """The idempotency key of the message at `position` stands for another publish."""

    def __init__(self, position: int) -> None:
        super().__init__(f"item {position}")
        self.position = position


def publish(
    messages: Sequence[NewMessage],
    *,
    publisher_id: int | None,
    key_hours: int,
    senders: int,
    callbacks: CallbackTerms,
    max_open: int | None = None,
) -> list[Accepted]:
    """Store the messages in their order, all or none, and wake the lines that got something.

    Returns one answer a message, in order, once everything is durable. `max_open` is how many messages of the
    publisher may have unfinished deliveries.

    Raises:
        PublishUnderWayError: a publish with one of the idempotency keys is still running.
        KeyReusedError: a key stands for another publish.
        RefusedItems: some have a callback URL that no reply can be sent to.
        TooManyOpenMessages: with the new ones there would be more open than `max_open`.

    """
    with transaction.atomic():
        known = _known(messages, publisher_id)
        new = [position for position in range(len(messages)) if position not in known]
        targets = _targets(messages, new, callbacks)
        with room_for(len(new), publisher_id=publisher_id, limit=max_open) as opened:
            accepted = store([messages[position] for position in new], publisher_id, senders)
            opened.update(one.id for one in accepted if one.deliveries)
        stored = dict(zip(new, accepted, strict=True))
        wanted = {stored[n].id: CallbackRequest(messages[n].event_type_id, target) for n, target in targets.items()}
        create_callbacks(wanted, publisher_id, callbacks)
        remember(publisher_id, [*_answered(messages, stored)], hours=key_hours)
    return [
        stored[position] if position in stored else _replayed(known[position], stored)
        for position in range(len(messages))
    ]


def _known(messages: Sequence[NewMessage], publisher_id: int | None) -> dict[int, Earlier | int]:
    """Return what was answered before, by position; a number names the item of this batch that comes first."""
    claimed = claim_keys(publisher_id, {message.idempotency_key for message in messages if message.idempotency_key})
    known: dict[int, Earlier | int] = {}
    first: dict[str, int] = {}
    for position, message in enumerate(messages):
        if not message.idempotency_key:
            continue
        sibling = first.setdefault(message.idempotency_key, position)
        earlier = claimed.get(message.idempotency_key)
        if message.fingerprint != (earlier or messages[sibling]).fingerprint:
            raise KeyReusedError(position)
        if earlier or sibling != position:
            known[position] = earlier.answer if earlier else sibling
    return known


def _targets(messages: Sequence[NewMessage], new: Sequence[int], callbacks: CallbackTerms) -> dict[int, CallbackTarget]:
    urls = {position: url for position in new if (url := messages[position].callback_url) is not None}
    return targets_of(urls, callbacks, total=len(messages)) if urls else {}


def _replayed(known: Earlier | int, stored: dict[int, Accepted]) -> Accepted:
    if isinstance(known, Earlier):
        return Accepted(*known, replayed=True)
    return replace(stored[known], replayed=True)


def _answered(messages: Sequence[NewMessage], stored: dict[int, Accepted]) -> Iterator[RememberedAnswer]:
    for position, answer in stored.items():
        message = messages[position]
        if message.idempotency_key:
            earlier = Earlier(answer.id, answer.outcome, answer.deliveries)
            yield RememberedAnswer(message.idempotency_key, message.fingerprint, earlier)
