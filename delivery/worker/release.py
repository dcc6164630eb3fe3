"""Release lines: unmark them, look for more work once, make sure that somebody does it."""

import threading
from collections import defaultdict
from collections.abc import Callable, Iterable
from queue import SimpleQueue

import structlog
from django.db import Error

from broker_project.core.db import forget_connection
from delivery.dispatch import notify
from delivery.dispatch.sweep import still_due
from delivery.worker.line import ActiveLine

log = structlog.get_logger(__name__)


class Releaser(threading.Thread):
    """A thread beside the event loop, so that neither a slow Redis nor this look holds up a line.

    In this order, or a wake could be lost: the settle has ended the lease, then the mark goes, then one look.
    """

    def __init__(self, on_failure: Callable[[], object]) -> None:
        super().__init__(name="releaser", daemon=True)
        self._on_failure = on_failure
        self._let_go: SimpleQueue[list[ActiveLine] | None] = SimpleQueue()
        self.start()

    def release(self, lines: list[ActiveLine]) -> None:
        """Take over lines whose lease has been ended."""
        self._let_go.put(lines)

    def stop(self) -> None:
        """Finish what was taken over, and end."""
        self._let_go.put(None)
        self.join()

    def run(self) -> None:
        """Follow up until stopped."""
        try:
            while lines := self._let_go.get():
                self._follow_up(lines)
        except Exception:
            log.exception("releaser.failed")
            self._on_failure()
            raise
        finally:
            forget_connection()

    def _follow_up(self, lines: list[ActiveLine]) -> None:
        ids = [line.id for line in lines]
        for queue, of_one in _by_queue(lines).items():
            notify.asleep(queue, [line.id for line in of_one])
        due = _still_due(ids)
        orphans = [line for line in lines if not line.run.stopped(line.id, has_more=line.id in due)]
        for queue, of_one in _by_queue(orphans).items():
            notify.wake(queue, [line.id for line in of_one if line.id in due])


def _by_queue(lines: Iterable[ActiveLine]) -> dict[str, list[ActiveLine]]:
    found: dict[str, list[ActiveLine]] = defaultdict(list)
    for line in lines:
        found[line.claim.queue].append(line)
    return found


def _still_due(line_ids: list[int]) -> set[int]:
    try:
        return set(still_due(line_ids))
    except Error as failure:
        log.warning("release.look_failed", reason=failure)
        forget_connection()
        return set()  # the sweep looks again
