"""Probe suspended subscriptions at their interval (contract 5.6)."""

import atexit
import os
from collections.abc import Iterable
from concurrent.futures import Future
from datetime import datetime
from functools import partial
from typing import Any, Final, NamedTuple

from django.db import transaction
from requests import Response

from broker_project.core.db import rows
from broker_project.core.egress import EgressPolicy
from delivery.dispatch import notify
from delivery.http.futures import CallLoop
from delivery.http.headers import EncodedRequest
from delivery.http.transfer import RequestNotCompleted
from delivery.pause import end_suspensions
from delivery.webhook.request import USER_AGENT
from subscriptions.retry_policies import TEAMFORGE

DEADLINE_SECONDS: Final = 5.0
MAX_ANSWER_BYTES: Final = 1
"""Its status is what it says."""
SUCCESS: Final = range(200, 300)

LOOK_SECONDS: Final = 30.0
"""After so long at most it is looked whether a trial still has something to try: longer than a lease."""


STILL_SUSPENDED: Final = """
SELECT s.id FROM unnest(%s::bigint[], %s::timestamptz[]) AS w (id, since)
  JOIN subscriptions_subscription s ON s.id = w.id AND s.paused_since = w.since AND s.paused_by = 'POLICY'
"""


class ProbeRequest(NamedTuple):
    """A monitor that was asked, and of which pause."""

    answer: Future[Any]
    since: datetime
    """When its subscription was suspended: a later suspension is not ended by what it says."""


class Monitors:
    """The monitors that a process has asked, and what has come of it; for one thread."""

    def __init__(self, egress: EgressPolicy) -> None:
        self._egress = egress
        self._loop: CallLoop | None = None
        self._process = 0
        self._asked: dict[int, ProbeRequest] = {}
        """By subscription."""

    def ask(self, subscription_id: int, url: str, since: datetime) -> None:
        """Send a GET, unless one to the same subscription's is under way."""
        loop = self._running()
        before = self._asked.get(subscription_id)
        if before is None or before.answer.done():
            request = EncodedRequest("GET", url, [f"User-Agent: {USER_AGENT}".encode()], b"")
            self._asked[subscription_id] = ProbeRequest(loop.take(request), since)

    def working(self) -> dict[int, datetime]:
        """Return the subscriptions whose monitors have answered 2xx, with since when they were suspended.

        Forget the others that have been answered; these are to be forgotten by whoever has let them go on.
        """
        done = {one: asked for one, asked in self._asked.items() if asked.answer.done()}
        working = {one: asked.since for one, asked in done.items() if _is_fine(asked.answer.result().result)}
        self.forget(done.keys() - working)
        return working

    def forget(self, subscription_ids: Iterable[int]) -> None:
        """Forget what came of asking these."""
        for one in subscription_ids:
            self._asked.pop(one, None)

    def _running(self) -> CallLoop:
        """Return the loop of this process: no thread survives a fork."""
        if self._loop is None or self._process != os.getpid() or not self._loop.is_alive():
            self._asked, self._process = {}, os.getpid()
            self._loop = CallLoop(
                egress=self._egress, deadline_seconds=DEADLINE_SECONDS, max_answer_bytes=MAX_ANSWER_BYTES
            )
            self._loop.start()
            atexit.register(self._loop.stop)
        return self._loop


def _is_fine(answer: Response | RequestNotCompleted) -> bool:
    return isinstance(answer, Response) and answer.status_code in SUCCESS


BEGIN: Final = f"""
WITH due AS MATERIALIZED (
  SELECT s.id, s.paused_since, s.monitor_url, COALESCE(p.probe_seconds, {TEAMFORGE.probe_seconds}) AS seconds,
         (SELECT l.id FROM delivery_line l WHERE l.subscriber_id = s.subscriber_id AND l.lane = 'main') AS line_id
    FROM subscriptions_subscription s LEFT JOIN subscriptions_retrypolicy p ON p.id = s.retry_policy_id
   WHERE s.probe_due_at <= (SELECT clock_timestamp()) AND s.paused_by = 'POLICY' AND s.status <> 'INACTIVE'
     AND (SELECT u.status FROM subscriptions_subscriber u WHERE u.id = s.subscriber_id) = 'ACTIVE'
   ORDER BY s.probe_due_at LIMIT 500 FOR NO KEY UPDATE OF s SKIP LOCKED),
begun AS (
  UPDATE subscriptions_subscription s
     SET half_open = d.monitor_url = '',
         probe_due_at = clock_timestamp() + make_interval(
           secs => CASE d.monitor_url WHEN '' THEN LEAST(d.seconds, {LOOK_SECONDS}) ELSE d.seconds END)
    FROM due d WHERE s.id = d.id)
SELECT d.id, d.paused_since, d.monitor_url, d.line_id,
       (SELECT o.id FROM delivery_open o
         WHERE o.subscription_id = d.id AND o.due_at IS NULL ORDER BY o.id LIMIT 1) IS NOT NULL
       OR (SELECT o.id FROM delivery_open o
            WHERE o.subscription_id = d.id AND o.line_id = d.line_id AND o.due_at <= (SELECT clock_timestamp())
            ORDER BY o.due_at, o.id LIMIT 1) IS NOT NULL
  FROM due d
"""
"""What is not active is not tried before it is again.

Said so that nothing but the index of probes will do: neither that of the active ones nor, joined, all subscribers.

A trial that nothing has come of yet is looked at again: what it was to send may be gone.
"""


class Due(NamedTuple):
    """A subscription whose probe was due."""

    subscription_id: int
    since: datetime
    """When it was suspended."""
    monitor_url: str
    line_id: int
    has_work: bool
    """Whether its subscriber's main line has something of it that can be tried now."""


def probe(monitors: Monitors) -> int:
    """Begin a trial of each subscription whose probe is due, or ask its monitor URL; return how many those were.

    One of which nothing waits that could be tried goes on at once, or what waits apart would wait for ever.
    """
    _end_what_works(monitors)
    with transaction.atomic():
        due = [Due(*columns) for columns in rows(BEGIN)]
        tried = [one for one in due if not one.monitor_url]
        idle = {one.subscription_id: one.since for one in tried if not one.has_work}
        if idle:
            end_suspensions(idle, reason="nothing is left to be tried")
        lines = sorted({one.line_id for one in tried if one.has_work})
        transaction.on_commit(partial(notify.wake, notify.TOPIC, lines), robust=True)
    for one in due:
        if one.monitor_url:
            monitors.ask(one.subscription_id, one.monitor_url, one.since)
    return len(due)


def _end_what_works(monitors: Monitors) -> None:
    """Let those go on whose monitors have answered; of one that somebody has locked the answer is kept."""
    working = monitors.working()
    if working:
        end_suspensions(working, reason="its monitor answers")
        locked = {one for (one,) in rows(STILL_SUSPENDED, [[*working], [*working.values()]])}
        monitors.forget(working.keys() - locked)
