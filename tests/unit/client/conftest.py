"""A played mailbox, and a client of it."""

from collections.abc import Iterator

import pytest

from broker_client import Mailbox
from tests.support import mailbox_server


@pytest.fixture
def played() -> Iterator[mailbox_server.PlayedMailbox]:
    """Play a mailbox for the client."""
    with mailbox_server.running_mailbox_server() as mailbox:
        yield mailbox


@pytest.fixture
def mailbox(played: mailbox_server.PlayedMailbox) -> Mailbox:
    """Call the played mailbox."""
    return Mailbox(played.url, mailbox_server.MAILBOX_NAME, mailbox_server.MAILBOX_TOKEN)


@pytest.fixture
def work() -> mailbox_server.StoppableHandler:
    return mailbox_server.StoppableHandler()
