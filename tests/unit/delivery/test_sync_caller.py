"""How many SYNC calls may wait in a web process."""

import pytest

from delivery.mailbox.long_poll import max_polls
from delivery.sync.caller import max_calls


@pytest.mark.behaviour("7.2")
@pytest.mark.parametrize(("threads", "calls"), [(1, 1), (2, 1), (8, 4), (127, 63), (128, 64), (1000, 64)])
def test_at_most_half_of_the_threads_wait_for_calls(threads: int, calls: int) -> None:
    assert max_calls(threads) == calls
    assert threads < 8 or calls + max_polls(threads) < threads, "some are left to publishers"
