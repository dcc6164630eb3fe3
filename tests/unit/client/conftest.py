"""A played mailbox, and a client of it."""

from collections.abc import Iterator

import pytest

from broker_client import Mailbox
from tests.support.mailbox_server import (
    MAILBOX_NAME,
    MAILBOX_TOKEN,
    PlayedMailbox,
    StoppableHandler,
    running_mailbox_server,
)


@pytest.fixture
def played() -> Iterator[PlayedMailbox]:
    """Play a mailbox for the client."""
    with running_mailbox_server() as mailbox:
        yield mailbox


@pytest.fixture
def mailbox(played: PlayedMailbox) -> Mailbox:
    """Call the played mailbox."""
    return Mailbox(played.url, MAILBOX_NAME, MAILBOX_TOKEN)


@pytest.fixture
def work() -> StoppableHandler:
    return StoppableHandler()
