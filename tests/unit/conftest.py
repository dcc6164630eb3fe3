"""What several of the unit tests are given."""

from collections.abc import Iterator

import pytest

from tests.played_mailbox import PlayedMailbox, playing


@pytest.fixture
def played() -> Iterator[PlayedMailbox]:
    """Play a mailbox for the client."""
    with playing() as mailbox:
        yield mailbox
