"""What a strand takes up next from its line's hand, reading on as needed; the same for every kind of line."""

from collections.abc import Callable, Generator
from typing import Any

from delivery.worker.line import Strand
from delivery.worker.steps import Ended, Read, Reply, Step


def next_in_hand(
    strand: Strand, ended: Ended | None, take: Callable[[], Any], *, linger: bool = False
) -> Generator[Step, Reply, tuple[Any, Ended | None]]:
    """Read as needed; return what goes next, None where the strand stops, and what is still to be settled.

    With `linger` a page is not read at once where there is nothing in hand to `take`.
    """
    line = strand.line
    if line.hand.is_low and not line.hold:
        line.size_page()
        yield Read(ended)
        ended = None
    while not line.must_stop():
        if taken := take():
            return taken, ended
        if line.hold or line.is_outdated or line.is_through:
            break
        yield Read(ended, linger)
        ended, linger = None, True
    return None, ended
