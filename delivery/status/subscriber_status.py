"""How a subscriber is doing: what waits for it, since when, why, and when it is tried next."""

from datetime import datetime
from typing import Final, NamedTuple

from broker_project.core.durations import rough
from delivery.models import Lane, Line
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
    LineState.AWAITING_RELEASE: "A filter or script failed. Release or cancel what is held.",
    LineState.DELAYED: "Only messages that were published with a delay wait.",
    LineState.INACTIVE: "What waits is for subscriptions that are inactive.",
}


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
    lines = Line.objects.filter(subscriber=subscriber, lane__in=[Lane.MAIN, Lane.RETRY]).order_by("lane")
    statuses = [*line_statuses([line.pk for line in lines]).values()]
    by_weight = sorted(statuses, key=lambda one: [*LineState].index(one.state))
    status = by_weight[0] if by_weight else LineStatus(LineState.IDLE, (), 0, 0, None)
    backlog = backlogs(subscriber.pk).get(subscriber.pk)
    hold = status.hold
    return SubscriberStatus(
        status.state,
        _why(subscriber, status, backlog, now),
        backlog.waiting if backlog else 0,
        backlog.is_cut if backlog else False,
        backlog.oldest_since if backlog else None,
        hold.next_try_at if hold else status.deferred_due_at,
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
    return "Everything is delivered." if backlog is None else "It is being sent its deliveries."
