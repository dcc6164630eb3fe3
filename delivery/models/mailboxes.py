"""Mailboxes, as a list of their own."""

from subscriptions.models import Subscriber


class Mailbox(Subscriber):
    """What a subscriber fetches itself: its PULL subscriptions together (behaviour 9.1)."""

    class Meta:
        proxy = True
        verbose_name_plural = "mailboxes"
