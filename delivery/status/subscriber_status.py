"""How a subscriber is doing: what waits for it, since when, why, and when it is tried next."""

from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime
from typing import Final, NamedTuple

from broker_project.core.durations import rough
from delivery.models import Line
from delivery.status.backlog import Backlog, backlogs
from delivery.status.line_status import LineState, LineStatus, line_statuses
from subscriptions.models import Status, Subscriber

BUSY: Final = (LineState.IDLE, LineState.SENDING)
"""States in which nothing is wrong with a line."""
WHY: Final = {
    LineState.WAITING: "Its deliveries can be sent, and wait for a worker.",
    LineState.DIVERTED: "An endpoint hangs: its deliveries wait until it has answered in the retry line.",
    LineState.DEFERRED: "What waits has failed before, and is tried again.",
    LineState.PAUSED: "What waits is for subscriptions that are paused.",
    LineState.AWAITING_RELEASE: "All that waits is held, each for the reason given. Release or cancel it.",
    LineState.DELAYED: "Only messages that were published with a delay wait.",
    LineState.INACTIVE: "What waits is for subscriptions that are inactive.",
}


NO_LINE: Final = LineStatus(LineState.IDLE, (), 0, 0, None)


class SubscriberStatus(NamedTuple):
    """The state of one subscriber's main line, or of its retry line if only that has work, and its whole backlog."""

    state: LineState
    why: str
    """Why it is so, as a sentence."""
    waiting: int
    is_cut: bool
    """Whether more waits than was counted."""
    oldest_since: datetime | None
    """Since when the oldest waits; None: nothing does."""
    next_try_at: datetime | None

    def sentence(self, now: datetime) -> str:
        """Return all of it in a few words."""
        parts = [self.why]
        if self.oldest_since:
            number = f"{self.waiting:,}{' or more' if self.is_cut else ''}"
            oldest = rough(max(0.0, (now - self.oldest_since).total_seconds()))
            waits = "delivery waits" if self.waiting == 1 else "deliveries wait"
            parts.append(f"{number} {waits}, the oldest for {oldest}.")
        if self.next_try_at:
            ahead = (self.next_try_at - now).total_seconds()
            parts.append(f"The next try is {f'in {rough(ahead)}' if ahead > 0 else 'due'}.")
        return " ".join(parts)


def subscriber_status(subscriber: Subscriber, now: datetime) -> SubscriberStatus:
    """Return how a subscriber is doing."""
    return subscriber_statuses([subscriber], now)[subscriber.pk]


def subscriber_statuses(subscribers: Sequence[Subscriber], now: datetime) -> dict[int, SubscriberStatus]:
    """Return how each of these is doing, by id; the number of queries does not grow with them."""
    ids = [one.pk for one in subscribers]
    lines = dict(Line.objects.filter(subscriber__in=ids).values_list("pk", "subscriber_id"))
    found: dict[int, list[LineStatus]] = defaultdict(list)
    for line_id, status in line_statuses([*lines]).items():
        found[lines[line_id] or 0].append(status)
    waiting = backlogs(ids)
    return {one.pk: _status_of(one, found[one.pk], waiting.get(one.pk), now) for one in subscribers}


def _status_of(
    subscriber: Subscriber, lines: Sequence[LineStatus], backlog: Backlog | None, now: datetime
) -> SubscriberStatus:
    """Return the status by the line in the worse state."""
    status = min(lines, key=lambda one: [*LineState].index(one.state), default=NO_LINE)
    return SubscriberStatus(
        status.state,
        _why(subscriber, status, backlog, now),
        backlog.waiting if backlog else 0,
        backlog.is_cut if backlog else False,
        backlog.oldest_since if backlog else None,
        status.hold.next_try_at if status.hold else status.deferred_due_at,
    )


def _why(subscriber: Subscriber, status: LineStatus, backlog: Backlog | None, now: datetime) -> str:
    if subscriber.status != Status.ACTIVE:
        return "It is inactive: nothing is sent to it, and new messages are not for it."
    if hold := status.hold:
        tries = "" if hold.failures == 1 else f", {hold.failures} tries"
        return f"Blocked for {rough(max(0.0, (now - hold.since).total_seconds()))}: {hold.reason}{tries}."
    if status.state in WHY:
        return WHY[status.state]
    if backlog and backlog.is_oldest_in_mailbox:
        return "Messages wait in its mailbox to be fetched."
    return "Nothing waits." if backlog is None else "It is being sent its deliveries."
