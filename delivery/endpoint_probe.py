"""Probe suspended subscriptions at their interval (contract 5.6)."""

import atexit
from collections.abc import Iterable
from concurrent.futures import Future
from datetime import datetime
from typing import Any, Final, NamedTuple

from django.db import transaction

from broker_project.core.db import rows
from broker_project.core.egress import EgressPolicy
from delivery.dispatch import notify
from delivery.dispatch.turn_floors import WAITS
from delivery.filing import MAIN_LINE
from delivery.http.futures import CallLoop
from delivery.http.transfer import EncodedRequest
from delivery.pause import end_suspensions
from delivery.webhook.request import USER_AGENT
from subscriptions.retry_policies import TEAMFORGE

DEADLINE_SECONDS: Final = 5.0
MAX_ANSWER_BYTES: Final = 1
"""Only its status counts."""
SUCCESSES: Final = range(200, 300)

AGAIN_SECONDS: Final = 30.0
"""The longest time until a half-open subscription is looked at again; longer than a lease."""

STILL_SUSPENDED: Final = """
SELECT s.id FROM unnest(%s::bigint[], %s::timestamptz[]) AS w (id, since)
  JOIN subscriptions_subscription s ON s.id = w.id AND s.paused_since = w.since AND s.paused_by = 'POLICY'
"""


class Monitors:
    """A process's requests to monitor URLs, and their answers; for one thread."""

    def __init__(self, egress: EgressPolicy) -> None:
        self._egress = egress
        self._loop: CallLoop | None = None
        self._requests: dict[int, tuple[Future[Any], datetime]] = {}
        """By subscription, with the time of its suspension: the answer does not end a later one."""

    def ask(self, subscription_id: int, url: str, since: datetime) -> None:
        """Send a GET, unless one for the same subscription is in flight."""
        if self._loop is None or not self._loop.is_alive():  # threads do not survive a fork
            self._requests = {}
            self._loop = CallLoop(
                egress=self._egress, deadline_seconds=DEADLINE_SECONDS, max_answer_bytes=MAX_ANSWER_BYTES
            )
            self._loop.start()
            atexit.register(self._loop.stop)
        before, _ = self._requests.get(subscription_id, (None, None))
        if before is None or before.done():
            request = EncodedRequest("GET", url, [f"User-Agent: {USER_AGENT}".encode()], b"")
            self._requests[subscription_id] = self._loop.take(request), since

    def working(self) -> dict[int, datetime]:
        """Return the subscriptions whose monitors answered 2xx, and since when they are suspended.

        The caller lets them go on and then calls `forget`; other answers are forgotten here.
        """
        working: dict[int, datetime] = {}
        for subscription_id, (future, since) in [*self._requests.items()]:
            if future.done():
                if future.result().status in SUCCESSES:
                    working[subscription_id] = since
                else:
                    del self._requests[subscription_id]
        return working

    def forget(self, subscription_ids: Iterable[int]) -> None:
        """Forget the requests for these subscriptions."""
        for subscription_id in subscription_ids:
            self._requests.pop(subscription_id, None)


ARE_DUE: Final = """EXISTS (
  SELECT FROM subscriptions_subscription WHERE probe_due_at <= (SELECT clock_timestamp()) AND status <> 'INACTIVE')"""

BEGIN: Final = f"""
WITH due AS MATERIALIZED (
  SELECT s.id, s.paused_since, s.monitor_url, COALESCE(p.probe_seconds, {TEAMFORGE.probe_seconds}) AS seconds,
         (SELECT l.id FROM {MAIN_LINE.format("s.subscriber_id")} l) AS line_id
    FROM subscriptions_subscription s LEFT JOIN subscriptions_retrypolicy p ON p.id = s.retry_policy_id
   WHERE s.probe_due_at <= (SELECT clock_timestamp()) AND s.paused_by = 'POLICY' AND s.status <> 'INACTIVE'
     AND (SELECT u.status FROM subscriptions_subscriber u WHERE u.id = s.subscriber_id) = 'ACTIVE'
   ORDER BY s.probe_due_at LIMIT 500 FOR NO KEY UPDATE OF s SKIP LOCKED),
begun AS (
  UPDATE subscriptions_subscription s
     SET half_open = d.monitor_url = '',
         probe_due_at = clock_timestamp() + make_interval(
           secs => CASE d.monitor_url WHEN '' THEN LEAST(d.seconds, {AGAIN_SECONDS}) ELSE d.seconds END)
    FROM due d WHERE s.id = d.id)
SELECT b.id, b.paused_since, b.monitor_url, b.line_id,
       (SELECT d.id FROM delivery_open d
         WHERE {WAITS.format("b.id")} ORDER BY d.subscription_id, d.id LIMIT 1) IS NOT NULL
       OR (SELECT o.id FROM delivery_open o
            WHERE o.subscription_id = b.id AND o.line_id = b.line_id AND o.due_at <= (SELECT clock_timestamp())
            ORDER BY o.due_at, o.id LIMIT 1) IS NOT NULL
  FROM due b
"""
"""Subscriptions and subscribers that are not active are not probed.

The conditions are written so that only the index of probes fits, not that of active subscriptions or a join with all
subscribers. A half-open subscription is looked at again, since what it was to send may be gone.
"""


class DueProbe(NamedTuple):
    """A subscription whose probe is due: a row of `BEGIN`."""

    subscription_id: int
    since: datetime
    """When it was suspended."""
    monitor_url: str
    line_id: int
    has_work: bool
    """Whether its subscriber's main line has one of its deliveries that can be sent now."""


def resume_answered(monitors: Monitors) -> int:
    """Resume each subscription whose monitor has answered; where another transaction has locked one, keep its answer.

    Returns 0: what is kept waits for the next time.
    """
    if working := monitors.working():
        end_suspensions(working, reason="its monitor answers")
        locked = {subscription_id for (subscription_id,) in rows(STILL_SUSPENDED, [[*working], [*working.values()]])}
        monitors.forget(working.keys() - locked)
    return 0


def probe(monitors: Monitors) -> int:
    """Make each subscription whose probe is due half-open, or ask its monitor URL; return how many those were.

    Without a delivery that can be sent, a subscription resumes at once: what it has in the retry line would wait
    forever.
    """
    with transaction.atomic():
        due = [DueProbe._make(row) for row in rows(BEGIN)]
        half_open = [one for one in due if not one.monitor_url]
        if idle := {one.subscription_id: one.since for one in half_open if not one.has_work}:
            end_suspensions(idle, reason="nothing is left to be tried")
        notify.wake_after_commit((notify.TOPIC, one.line_id) for one in half_open if one.has_work)
    for one in due:
        if one.monitor_url:
            monitors.ask(one.subscription_id, one.monitor_url, one.since)
    return len(due)
