"""How a reader may be told to fetch."""

import pytest

from broker_client import Mailbox, MailboxReader
from tests.playing_mailbox import NAME, TOKEN

NOWHERE = "http://127.0.0.1:9"


@pytest.mark.parametrize(
    ("terms", "said"),
    [
        ({"most": 0}, "most is 0, and may be from 1 to 100"),
        ({"most": 101}, "most is 101, and may be from 1 to 100"),
        ({"wait": -0.5}, r"wait is -0\.5, and may be from 0 to 20"),
        ({"wait": 20.5}, r"wait is 20\.5, and may be from 0 to 20"),
        ({"wait": float("nan")}, "wait is nan, and may be from 0 to 20"),
        ({"consumers": 0}, "consumers is 0, and must be at least 1"),
    ],
)
def test_a_reader_that_could_not_read_is_refused_at_once(terms: dict[str, int], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        MailboxReader(Mailbox(NOWHERE, NAME, TOKEN), print, **terms)


@pytest.mark.parametrize("terms", [{"most": 1, "wait": 0}, {"most": 100, "wait": 20}])
def test_a_reader_may_be_told_whatever_the_broker_allows(terms: dict[str, int]) -> None:
    MailboxReader(Mailbox(NOWHERE, NAME, TOKEN), print, **terms)
