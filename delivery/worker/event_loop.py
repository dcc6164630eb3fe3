"""The event loop: one thread of a worker process runs any number of lines side by side, a round at a time."""

import resource
import threading
from collections.abc import Callable, Sequence
from functools import partial

import structlog

from broker_project.core.db import forget_connection, waits_until
from broker_project.core.egress import EgressPolicy
from delivery.callbacks.address import CallbackTerms
from delivery.dispatch.notify import HintListener, Link
from delivery.http.client import HttpClient
from delivery.worker.leases import Releaser
from delivery.worker.rounds import NO_LINK, Rounds

log = structlog.get_logger(__name__)


class EventLoop(threading.Thread):
    """Runs lines until it is stopped; the only thread that touches its client and its lines."""

    def __init__(
        self,
        *,
        worker: str,
        queue_max_in_flight: int,
        terms: CallbackTerms,
        egress: EgressPolicy,
        on_failure: Callable[[], object] = lambda: None,
    ) -> None:
        super().__init__(name="event-loop", daemon=True)
        self.worker = worker
        self._on_failure = on_failure
        self._client = HttpClient(egress=egress)
        self._releaser = Releaser(worker, self.take, on_failure)
        self._listener = HintListener(worker, partial(self.take, link=None))
        self.lines = Rounds(
            self._client,
            self._releaser,
            terms,
            self._listener,
            worker=worker,
            queue_max_in_flight=queue_max_in_flight,
        )
        self.budget = self.lines.budget
        self._client.watch_too(self.lines.isolation.fileno())
        self._inbox: list[tuple[str, Sequence[int], Link | None]] = []
        self._inbox_lock = threading.Lock()
        self._stopping = threading.Event()

    def take(self, queue: str, line_ids: Sequence[int], link: Link | None = NO_LINK) -> None:
        """Run these lines, which have work, for one turn each, if they are due and free (contract 4.14).

        Without a link it is a hint that lines have new work. May be called from any thread.
        """
        with self._inbox_lock:
            self._inbox.append((queue, line_ids, link))
        self._client.interrupt()

    def stop(self, seconds: float) -> bool:
        """Start nothing new, settle what is in flight and release every line; say whether that was done in time."""
        self._stopping.set()
        self._client.interrupt()
        self.join(seconds)
        return not self.is_alive()

    def run(self) -> None:
        """Go round until stopped and empty, with as many files open as this process may have."""
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
        self._listener.start()
        try:
            while not self._stopping.is_set() or self.lines or self._inbox:
                self._round()
        except Exception:
            # A fault of ours: better a new process, which recovers these lines, than one that runs half of them.
            log.exception("event_loop.failed")
            self._on_failure()
            raise
        finally:
            self._listener.stop()
            self._releaser.stop()
            self._client.close()
            self.lines.isolation.close()
            if self.lines.scripts:
                self.lines.scripts.close()
            forget_connection()

    def _round(self) -> None:
        answers = self._client.wait(self.lines.patience())
        with self._inbox_lock:
            inbox, self._inbox = self._inbox, []
        for queue, line_ids, link in inbox:
            self.lines.want(queue, line_ids, link)
        if self._stopping.is_set():
            self.lines.stop()  # before they hear of their answers, or they would send once more
        self.lines.answered(answers + self.lines.isolation.finished())
        if self.lines.scripts:
            self.lines.ran(self.lines.scripts.finished())
        with waits_until(self.lines.leases.database_deadline()):
            self.lines.go()
