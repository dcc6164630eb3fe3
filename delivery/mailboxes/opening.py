"""Finding a mailbox by its subscriber's name, as the client that calls may see it."""

from typing import Final, NamedTuple

from delivery.mailboxes.hand_outs import Box
from subscriptions.database import rows

OPEN: Final = """
SELECT id, mailbox_ordered, ack_seconds, max_redeliveries
  FROM subscriptions_subscriber
 WHERE name = %s AND id = COALESCE(%s, id)
"""
"""Prepared, since every call of a client begins with it."""


class Mailbox(NamedTuple):
    """A subscriber's mailbox, and what it says of it."""

    subscriber_id: int
    is_ordered: bool
    ack_seconds: int
    max_redeliveries: int | None

    @property
    def box(self) -> Box:
        """What is fetched from."""
        return Box(self.subscriber_id, self.is_ordered)


def mailbox_named(name: str, *, owner_id: int | None) -> Mailbox | None:
    """Return the mailbox of the subscriber of that name; None: there is none, or it is not this owner's (None: any)."""
    return next((Mailbox(*found) for found in rows(OPEN, [name, owner_id])), None)
