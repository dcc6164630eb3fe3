"""Whether every event was archived by whoever fetched it: from the readers' logs, and the broker's books."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from broker_project.stack.demo.arrivals import is_accepted, unflagged
from broker_project.stack.demo.records import Published, Request
from broker_project.stack.demo.verdict import is_right, percentiles


@dataclass(frozen=True, slots=True)
class Archived:
    """What became of the events in a mailbox."""

    expected: int
    done_by: Mapping[str, int]
    """How many each reader has archived."""

    handed_to: Mapping[str, int]
    """How many each reader was handed."""

    returned: int
    """Handed out, and not archived that time."""

    lost: int
    duplicated: int
    """Handed out after they had been archived, without saying that they may have been."""

    wrong: int
    """Altered, or not for the archive."""

    misrecorded: int
    """Events that do not stand in the broker's books as DELIVERED, once."""

    p50: float
    p95: float
    """Seconds from the beginning of the publish call to the hand-out after which it was archived."""

    @property
    def done(self) -> int:
        """How many are archived."""
        return sum(self.done_by.values())


def judge_mailbox(expected: Sequence[Published], handed: Iterable[Request], books: Mapping[int, int]) -> Archived:
    """Judge what a mailbox has handed out; `books` says of each message how many of its deliveries are DELIVERED."""
    events = {event.number: event for event in expected}
    hand_outs = sorted(handed, key=lambda each: each.at)
    done = {each.number: each for each in reversed(hand_outs) if is_accepted(each.answer) and each.number in events}
    p50, p95 = percentiles([each.at - events[each.number].started for each in done.values()])
    return Archived(
        expected=len(events),
        done_by=Counter(each.subscriber for each in done.values()),
        handed_to=Counter(each.subscriber for each in hand_outs),
        returned=sum(not is_accepted(each.answer) for each in hand_outs),
        lost=len(events.keys() - done.keys()),
        duplicated=unflagged(hand_outs),
        wrong=sum(not is_right(each, events.get(each.number)) for each in hand_outs),
        misrecorded=sum(books.get(event.message, 0) != 1 for event in events.values()),
        p50=p50,
        p95=p95,
    )
