"""Publish messages: what is published together is stored in one transaction (contract 2).

A publication is what one request publishes, and stands alone: it is stored as a whole or not at all, and what is wrong
with it costs the others nothing.
"""

from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from logging import INFO
from typing import Final, NamedTuple

import structlog
from django.conf import settings
from django.db import transaction

from broker_project.core.db import ANSWER_SECONDS, answered_within
from delivery.callbacks.address import CallbackTerms, callback_terms
from delivery.callbacks.create import CallbackRequest, CallbackTarget, create_callbacks, targets_of
from delivery.publish.errors import RefusedItems, TooManyDeliveries
from delivery.publish.idempotency import Key, KeyUse, PublishInProgress, claim_keys, earlier_uses, remember
from delivery.publish.open_messages import MoreThanMayBeOpen, TooManyOpenMessages, refresh_open, room_for
from delivery.publish.routing import Route, routes_of
from delivery.publish.store import Accepted, NewMessage, choose_and_store, store
from delivery.publish.together import TakesLong, together
from subscriptions.credentials.keys import FoundKey
from subscriptions.models import EventKind

MAX_GROUP_DELIVERIES: Final = 10_000
"""What does not fit in is published by itself afterwards, so that the others do not wait for it."""

message_log: Final = structlog.get_logger("messages")
"""Silent unless `BROKER_LOG_MESSAGES` is set."""


class NotAsRemembered(Exception):
    """Nothing is published, since what is remembered of a key and an event type has not been confirmed: look it up."""


class KeyReusedError(Exception):
    """The idempotency key of the message at `position` was used for a different publish."""

    def __init__(self, position: int) -> None:
        super().__init__(f"item {position}")
        self.position = position


REFUSED_WITH: Final = (
    KeyReusedError,
    MoreThanMayBeOpen,
    PublishInProgress,
    RefusedItems,
    TakesLong,
    TooManyDeliveries,
    TooManyOpenMessages,
)
"""What one publication is refused for."""


@dataclass(frozen=True, slots=True)
class PublishTerms:
    """What applies to every publish."""

    key_hours: int
    """How long an idempotency key is kept."""
    senders: int
    """The number of QUEUE senders."""
    max_deliveries: int
    """How many deliveries one publication may become."""
    callbacks: CallbackTerms


def publish_terms() -> PublishTerms:
    """Return the terms in the settings; for interfaces, which pass them on."""
    return PublishTerms(
        settings.IDEMPOTENCY_KEY_HOURS, settings.QUEUE_SENDERS, settings.MAX_DELIVERIES, callback_terms()
    )


class Publication(NamedTuple):
    """What one request publishes."""

    messages: Sequence[NewMessage]
    """All of one publisher."""
    max_open: int | None = None
    """How many messages of the publisher may have unfinished deliveries."""
    found: FoundKey | None = None
    """The key and the event type, if they were found for several publications together."""


@dataclass(slots=True, eq=False)
class _Progress:
    """How far a publication has come."""

    messages: Sequence[NewMessage]
    max_open: int | None
    refusal: Exception | None = None
    known: dict[int, Accepted | int] = field(default_factory=dict)
    """Earlier answers by position; a number is the position of the first message with the same key."""
    new: dict[int, NewMessage] = field(default_factory=dict)
    """The messages to store, by position."""
    targets: dict[int, CallbackTarget] = field(default_factory=dict)
    """Where their replies go, by position."""
    routes: Sequence[Route] = ()
    stored: dict[int, Accepted] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for message in self.messages:
            message.work.done = 0  # a publication that failed with others is tried again by itself

    def look_up(self, uses: Mapping[Key, KeyUse], in_progress: Set[Key]) -> None:
        """Tell new messages from known ones by their idempotency keys.

        Raises:
            PublishInProgress, KeyReusedError: see `publish`.
        """
        if in_progress and not in_progress.isdisjoint(message.key for message in self.messages):
            raise PublishInProgress
        first: dict[Key, int] = {}
        for position, message in enumerate(self.messages):
            key = message.key
            if key is None:
                self.new[position] = message
                continue
            sibling = first.setdefault(key, position)
            use = message.repeats or uses.get(key)
            if message.fingerprint != (use or self.messages[sibling]).fingerprint:
                raise KeyReusedError(position)
            if use:
                self.known[position] = Accepted(use.message_id, use.outcome, use.deliveries_count, replayed=True)
            elif sibling != position:
                self.known[position] = sibling
            else:
                self.new[position] = message

    @property
    def publisher_id(self) -> int | None:
        """The publisher of all messages."""
        return self.messages[0].publisher_id if self.messages else None

    def share_work(self, publications: int) -> None:
        """Let its filters do what each of several publications may do in one transaction."""
        for message in self.messages:
            message.work.share(publications)

    @property
    def deliveries(self) -> int:
        """How many its messages become together."""
        return sum(len(route.matches) for route in self.routes)

    @contextmanager
    def refusable(self) -> Iterator[None]:
        """Note what it is refused for, which concerns no other."""
        try:
            yield
        except REFUSED_WITH as refusal:
            self.refusal = refusal

    def callbacks(self) -> Iterator[CallbackRequest]:
        """Yield the stored messages that get callbacks."""
        for place, target in self.targets.items():
            message = self.new[place]
            yield CallbackRequest(self.stored[place].id, message.event_type_id, message.publisher_id, target)

    def uses(self) -> Iterator[tuple[Key, KeyUse]]:
        """Yield the new idempotency keys, with the answers."""
        for place, message in self.new.items():
            if key := message.key:
                answer = self.stored[place]
                yield key, KeyUse(message.fingerprint, answer.id, answer.outcome, answer.deliveries)

    def answers(self) -> list[Accepted]:
        """Return the answer to each message."""
        found = [self.stored.get(place) or self.known[place] for place in range(len(self.messages))]
        return [replace(self.stored[one], replayed=True) if isinstance(one, int) else one for one in found]


def publish(messages: Sequence[NewMessage], terms: PublishTerms, *, max_open: int | None = None) -> list[Accepted]:
    """Store the messages of one publisher in their order, all or none, and wake the lines that got something.

    Returns an answer for each message, in order, once everything is durable.

    Raises:
        PublishInProgress: a publish with one of the idempotency keys is still running.
        KeyReusedError: a key was used for a different publish.
        RefusedItems: some have a callback URL that no reply can be sent to.
        TooManyDeliveries: they would become more than one publication may.
        TooManyOpenMessages: with the new ones there would be more open than `max_open`.
        MoreThanMayBeOpen: they alone are more than `max_open`.
        django.db.Error
    """
    (answer,) = publish_together([Publication(messages, max_open)], terms)
    if isinstance(answer, Exception):
        raise answer
    return answer


def publish_together(publications: Sequence[Publication], terms: PublishTerms) -> list[list[Accepted] | Exception]:
    """Publish each as `publish` does, in one transaction; return its answers, or the exception that it ended with."""
    answers = together(partial(_publish, terms=terms), publications) if publications else []
    if message_log.isEnabledFor(INFO):
        if transaction.get_connection().in_atomic_block:  # which may still be rolled back
            transaction.on_commit(partial(_log_published, publications, answers), robust=True)
        else:
            _log_published(publications, answers)
    return answers


def _log_published(publications: Sequence[Publication], answers: Sequence[list[Accepted] | Exception]) -> None:
    for one, accepted in zip(publications, answers, strict=True):
        for message, answer in () if isinstance(accepted, Exception) else zip(one.messages, accepted, strict=True):
            if not answer.replayed:
                about = {"event_type": message.event_type, "publisher_id": message.publisher_id}
                counts = {"outcome": str(answer.outcome), "deliveries": answer.deliveries}
                message_log.info("message.published", message_id=answer.id, **about, **counts)


def _publish(publications: Sequence[Publication], terms: PublishTerms) -> Sequence[list[Accepted] | Exception]:
    plain = _publish_plain(publications, terms)
    if not plain:
        if any(one.found and one.found.is_remembered for one in publications):
            return [NotAsRemembered() for _ in publications]
        return _publish_any(publications, terms)
    left_out = [one for one, answer in zip(publications, plain, strict=True) if not answer]
    if not left_out:
        return plain
    answers = iter(together(partial(_publish_any, terms=terms), left_out))  # what is stored must not be tried again
    return [answer or next(answers) for answer in plain]


def _publish_plain(publications: Sequence[Publication], terms: PublishTerms) -> list[list[Accepted]]:
    """Publish in one statement where nothing has to be found out first, as in most cases; else return nothing.

    The answer to a publication whose idempotency key is in use is empty: it is left out.
    """
    if not all(map(_is_plain, publications)):
        return []
    messages = [message for one in publications for message in one.messages]
    found = [one.found for one in publications if one.found]
    max_deliveries = min(terms.max_deliveries, MAX_GROUP_DELIVERIES)
    stored = choose_and_store(messages, found, max_deliveries=max_deliveries, key_hours=terms.key_hours)
    answers = iter(stored)
    return [[*filter(None, islice(answers, len(one.messages)))] for one in publications] if stored else []


def _is_plain(publication: Publication) -> bool:
    is_alone = len(publication.messages) == 1  # otherwise a repeat concerns the others
    return publication.max_open is None and all(
        one.kind == EventKind.TOPIC
        and not (one.destination or one.ttl is not None or one.not_before or one.repeats)
        and (is_alone or not one.idempotency_key)
        for one in publication.messages
    )


def _publish_any(publications: Sequence[Publication], terms: PublishTerms) -> list[list[Accepted] | Exception]:
    progress = [_Progress(one.messages, one.max_open) for one in publications]
    with ExitStack() as rooms, transaction.atomic():  # until the commit, only its room counts a message as open
        keys = {key for one in progress for message in one.messages if (key := message.key)}
        opened = _routed(progress, *claim_keys(keys), rooms, terms)
        routes = [route for one in opened for route in one.routes]
        new = [message for one in opened for message in one.new.values()]
        is_last = not any(one.targets for one in opened) and not any(message.idempotency_key for message in new)
        is_large = sum(one.deliveries for one in opened) > MAX_GROUP_DELIVERIES
        with answered_within(ANSWER_SECONDS) if is_large else nullcontext():  # if it takes too long, the server ends it
            answers = iter(store(new, routes, terms.senders, is_last=is_last))
        for one, ids in opened.items():
            one.stored = dict(zip(one.new, islice(answers, len(one.new)), strict=True))
            ids.update(answer.id for answer in one.stored.values() if answer.deliveries)
        create_callbacks([request for one in opened for request in one.callbacks()], terms.callbacks)
        remember({key: use for one in opened for key, use in one.uses()}, hours=terms.key_hours)
    return [one.refusal or one.answers() for one in progress]


def _routed(
    progress: Sequence[_Progress],
    uses: Mapping[Key, KeyUse],
    in_progress: set[Key],
    rooms: ExitStack,
    terms: PublishTerms,
) -> dict[_Progress, set[int]]:
    """Check each publication and find its routes; return the reservations of those that are accepted.

    Of several, what takes long is not: its filters have more to do than its share of what one publication may do, or it
    is more deliveries than are left of `MAX_GROUP_DELIVERIES`.
    """
    checked: list[_Progress] = []
    for one in progress:
        with one.refusable():
            one.look_up(uses, in_progress)
            urls = {position: new.callback_url for position, new in one.new.items() if new.callback_url is not None}
            one.targets = targets_of(urls, terms.callbacks, total=len(one.messages)) if urls else {}
            in_progress.update(key for message in one.new.values() if (key := message.key))
            refresh_open(one.publisher_id, one.max_open)  # it can take long, and from the routes on deletions wait
            checked.append(one)
            one.share_work(len(progress))
    routes = iter(routes_of([message for one in checked for message in one.new.values()]))
    opened: dict[_Progress, set[int]] = {}
    left = MAX_GROUP_DELIVERIES
    for one in checked:
        one.routes = [*islice(routes, len(one.new))]
        with one.refusable():
            opened[one] = rooms.enter_context(_room_of(one, terms, left if len(progress) > 1 else None))
            left -= one.deliveries
    return opened


def _room_of(one: _Progress, terms: PublishTerms, left: int | None) -> AbstractContextManager[set[int]]:
    """Return a reservation for the new messages that have deliveries; see `room_for`.

    `left` is how many deliveries it may become beside other publications; None: there are no others.

    Raises:
        TooManyDeliveries, TakesLong: see `_routed`.
    """
    if left is not None and any(message.work.is_used_up for message in one.new.values()):
        raise TakesLong
    if one.deliveries > terms.max_deliveries:
        raise TooManyDeliveries(one.deliveries, terms.max_deliveries)
    if left is not None and one.deliveries > left:
        raise TakesLong
    one.share_work(1)
    number = sum(1 for route in one.routes if route.matches)
    return room_for(number, publisher_id=one.publisher_id, limit=one.max_open)


def dry_run(message: NewMessage, terms: PublishTerms, *, max_open: int | None) -> Route | Accepted:
    """Return the route by which `publish` would store a message, or its answer to an earlier publish with the same key.

    Nothing is stored, and no idempotency key is claimed. Raises as `publish`, except `PublishInProgress`.
    """
    one = _Progress([message], max_open)
    with ExitStack() as rooms:
        _routed([one], earlier_uses([message.key] if message.key else []), set(), rooms, terms)
    if one.refusal:
        raise one.refusal
    return one.routes[0] if one.routes else one.answers()[0]
