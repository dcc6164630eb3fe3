"""Opening a mailbox by its subscriber's name, as the client that calls may see it."""

from typing import NamedTuple

from delivery.mailbox.hand_outs import Box
from subscriptions.models import ApiKey, Subscriber


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


def mailbox_named(name: str, *, key: ApiKey) -> Mailbox | None:
    """Return the mailbox of the subscriber of that name; None: there is none, or it is not this key's.

    Asks nothing where the key is a subscriber's own, as that of a client is: it came with its key.
    """
    owner = key.subscriber or Subscriber.objects.filter(name=name).first()
    if owner is None or owner.name != name:
        return None
    return Mailbox(owner.pk, owner.mailbox_ordered, owner.ack_seconds, owner.max_redeliveries)
