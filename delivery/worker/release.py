"""What follows when lines have been released: the next link of their chain, if they have more work."""

import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from queue import SimpleQueue

import structlog

from delivery.dispatch import notify
from delivery.dispatch.notify import Link

log = structlog.get_logger(__name__)


@dataclass(slots=True)
class Released:
    """A line that this worker does not run any more, or could not claim."""

    line_id: int
    queue: str
    link: Link
    has_more: bool = False


class Releaser(threading.Thread):
    """Follows up on released lines in a thread of its own, so that a slow Redis delays no line.

    The settle has ended the lease first. Then publishers wake the line again, and only then its next turn is sent. A
    hint that comes too late lets this worker own and claim the line again: so no wake-up is lost.
    """

    def __init__(
        self, worker: str, take: Callable[[str, Sequence[int]], object], on_failure: Callable[[], object]
    ) -> None:
        super().__init__(name="releaser", daemon=True)
        self._worker = worker
        self._on_failure = on_failure
        self._take = take
        self._work: SimpleQueue[Callable[[], object] | None] = SimpleQueue()
        self.start()

    def release(self, lines: Sequence[Released]) -> None:
        """Take over lines whose lease has been ended, or that are lost."""
        self._work.put(partial(self._follow_up, lines))

    def claim_again(self, queue: str, line_ids: Sequence[int]) -> None:
        """Let the worker claim lines that it has released, since a hint came too late for them."""
        self._work.put(partial(notify.own, queue, line_ids, self._worker))
        self._work.put(partial(self._take, queue, line_ids))

    def stop(self) -> None:
        """Finish what was taken over, and end."""
        self._work.put(None)
        self.join()

    def run(self) -> None:
        """Follow up until stopped."""
        try:
            while act := self._work.get():
                act()
        except Exception:
            log.exception("releaser.failed")
            self._on_failure()
            raise

    def _follow_up(self, lines: Sequence[Released]) -> None:
        by_queue: dict[str, list[int]] = defaultdict(list)
        links: dict[tuple[str, Link], list[int]] = defaultdict(list)
        for line in lines:
            by_queue[line.queue].append(line.line_id)
            if line.has_more:
                links[line.queue, line.link].append(line.line_id)
        for queue, line_ids in by_queue.items():
            notify.disown(queue, line_ids, self._worker)
        for (queue, link), line_ids in links.items():
            notify.send_link(queue, line_ids, link)
