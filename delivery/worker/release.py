"""What follows when lines have been released: they are woken again, or left to their turn, if they have more work."""

import threading
from collections import defaultdict
from collections.abc import Callable
from queue import SimpleQueue

import structlog
from django.db import Error

from broker_project.core.db import forget_connection
from delivery.dispatch import notify
from delivery.dispatch.sweep import still_due
from delivery.worker.line import ActiveLine

log = structlog.get_logger(__name__)


class Releaser(threading.Thread):
    """Follows up on released lines in a thread of its own, so that a slow Redis delays no line.

    In this order, or a wake-up could be lost: the settle has ended the lease, then the awake mark goes, then the line
    is looked at once more, and woken, or left to its turn, if it has more work.
    """

    def __init__(self, on_failure: Callable[[], object]) -> None:
        super().__init__(name="releaser", daemon=True)
        self._on_failure = on_failure
        self._released: SimpleQueue[list[ActiveLine] | None] = SimpleQueue()
        self.start()

    def release(self, lines: list[ActiveLine]) -> None:
        """Take over lines whose lease has been ended."""
        self._released.put(lines)

    def stop(self) -> None:
        """Finish what was taken over, and end."""
        self._released.put(None)
        self.join()

    def run(self) -> None:
        """Follow up until stopped."""
        try:
            while lines := self._released.get():
                by_queue: dict[str, list[ActiveLine]] = defaultdict(list)
                for line in lines:
                    by_queue[line.claim.queue].append(line)
                for queue, its_lines in by_queue.items():
                    notify.clear_awake(queue, [line.id for line in its_lines])
                due = _still_due([line.id for line in lines])
                for queue, its_lines in by_queue.items():
                    orphans = [line for line in its_lines if not line.run.stopped(line.id, has_more=line.id in due)]
                    notify.wake(queue, [line.id for line in orphans if line.id in due])
        except Exception:
            log.exception("releaser.failed")
            self._on_failure()
            raise
        finally:
            forget_connection()


def _still_due(line_ids: list[int]) -> set[int]:
    try:
        return set(still_due(line_ids))
    except Error as failure:
        log.warning("release.look_failed", reason=failure)
        forget_connection()
        return set()  # the sweep looks again
