"""Handing out what is available, oldest first, each to one client (behaviour 9.1, 9.3)."""

from delivery.mailboxes.hand_outs import Box, Fetched


def fetch(box: Box, *, most: int) -> list[Fetched]:
    """Hand out the oldest available messages, `most` of them at most, in order of id; durably before it returns.

    Empty: there is nothing, or an ordered mailbox has one in flight.
    """
    raise NotImplementedError
