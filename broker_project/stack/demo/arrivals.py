"""What a receiver's requests, in the order of their arrival, say about repetition and order."""

from collections.abc import Iterable

from broker_project.stack.demo.records import Published, Request

SERVICE_UNAVAILABLE = 503
"""Holds the line; every other 5xx sets the delivery aside."""


def is_final(answer: int) -> bool:
    """Say whether an answer ends a delivery."""
    return 200 <= answer < 500  # noqa: PLR2004 - 2xx, 3xx, 4xx


def is_accepted(answer: int) -> bool:
    """Say whether an answer takes what was sent."""
    return answer // 100 == 2  # noqa: PLR2004 - 2xx


def sets_aside(answer: int) -> bool:
    """Say whether an answer lets the next message go first."""
    return not is_final(answer) and answer != SERVICE_UNAVAILABLE


def repeated(requests: Iterable[Request]) -> int:
    """Count the requests for events that had been answered for good."""
    ended: set[int] = set()
    count = 0
    for request in requests:
        count += request.number in ended
        if is_final(request.answer):
            ended.add(request.number)
    return count


def unflagged(requests: Iterable[Request]) -> int:
    """Count the requests for events that somebody had taken, where they do not say that they may be repeated."""
    taken: set[int] = set()
    count = 0
    for request in requests:
        count += request.number in taken and not request.possible_duplicate
        if is_accepted(request.answer):
            taken.add(request.number)
    return count


def inverted(arrivals: Iterable[Published]) -> int:
    """Count the events that arrived after one published entirely later; overlapping calls have no order."""
    latest_start = float("-inf")
    positions: dict[float, int] = {}
    late: set[int] = set()
    for event in arrivals:
        latest_position = positions.get(event.started, 0)
        if event.ended < latest_start or event.position < latest_position:
            late.add(event.number)
        latest_start = max(latest_start, event.started)
        positions[event.started] = max(latest_position, event.position)
    return len(late)
