"""Who gets what was published, and what that makes of the message as a whole (behaviour 2.8, 2.14)."""

from collections.abc import Sequence
from typing import Final, NamedTuple

import structlog

from delivery.models import MessageOutcome
from delivery.publish.routing import Directed, directed
from subscriptions.matching import Match, matching_subscriptions
from subscriptions.models.subscribers import EACH_SUBSCRIBER

ASTRAY: Final = {
    MessageOutcome.UNROUTED: "message.unrouted",
    MessageOutcome.DISCARDED: "message.discarded",
    MessageOutcome.DEAD_LETTERED: "message.dead_lettered",
}
"""What is logged of a message that nobody gets (behaviour 11.2)."""

log = structlog.get_logger(__name__)


class Route(NamedTuple):
    """Where one message goes."""

    matches: Sequence[Match]
    outcome: MessageOutcome


def routes_of(messages: Sequence[Directed], *, lock: bool = True) -> list[Route]:
    """Return where each message goes, in their order; who gets something is locked against deletion, if wanted."""
    for_one = {place: one for place, one in enumerate(messages) if one.destination not in (None, EACH_SUBSCRIBER)}
    if not for_one:
        return _by_wishes(messages, lock=lock)
    others = {place: one for place, one in enumerate(messages) if place not in for_one}
    routes = dict(zip(for_one, _by_name([*for_one.values()], lock=lock), strict=True))
    routes |= dict(zip(others, _by_wishes([*others.values()], lock=lock) if others else (), strict=True))
    return [routes[place] for place in range(len(messages))]


def _by_wishes(messages: Sequence[Directed], *, lock: bool) -> list[Route]:
    return [
        _to(_first_of_each(matches) if message.destination else matches, MessageOutcome.UNROUTED)
        for message, matches in zip(messages, matching_subscriptions(messages, lock=lock), strict=True)
    ]


def _by_name(messages: Sequence[Directed], *, lock: bool) -> list[Route]:
    return [
        Route((), MessageOutcome.DEAD_LETTERED) if matches is None else _to(matches, MessageOutcome.DISCARDED)
        for matches in directed(messages, lock=lock)
    ]


def _to(matches: Sequence[Match], otherwise: MessageOutcome) -> Route:
    return Route(matches, MessageOutcome.ROUTED if matches else otherwise)


def _first_of_each(matches: Sequence[Match]) -> list[Match]:
    """Return of each subscriber its first one."""
    firsts: dict[int, Match] = {}
    for match in matches:
        firsts.setdefault(match.subscriber_id, match)
    return [*firsts.values()]


def log_astray(ids: Sequence[int | str], messages: Sequence[Directed], routes: Sequence[Route]) -> None:
    """Log the messages that nobody gets."""
    for message_id, message, route in zip(ids, messages, routes, strict=True):
        if event := ASTRAY.get(route.outcome):
            log.info(event, message_id=message_id, event_type=message.event_type, destination=message.destination)
