"""What several of the unit tests are given."""

from collections.abc import Iterator

import pytest

from broker_client import Mailbox
from tests.played_mailbox import PlayedMailbox
from tests.playing_mailbox import NAME, TOKEN, playing


@pytest.fixture
def played() -> Iterator[PlayedMailbox]:
    """Play a mailbox for the client."""
    with playing() as mailbox:
        yield mailbox


@pytest.fixture
def mailbox(played: PlayedMailbox) -> Mailbox:
    """Call the played mailbox."""
    return Mailbox(played.url, NAME, TOKEN)
