"""Probing suspended subscriptions, each at its interval (behaviour 5.6).

A trial lets its oldest delivery out: what comes of it is settled like any other, and suspends it again or ends the
pause. Where it has a monitor, that is asked instead.
"""

from collections.abc import Sequence
from functools import partial
from typing import Final

from django.db import transaction

from delivery.probing.monitors import Monitors
from delivery.rules.due_times import FIRST_SENTINEL
from delivery.settling.pausing import resume
from delivery.waking import wakeups
from subscriptions.database import rows
from subscriptions.models.pausable import PausedBy
from subscriptions.retry_terms import TEAMFORGE

BEGIN: Final = f"""
WITH due AS MATERIALIZED (
  SELECT s.id, s.monitor_url, COALESCE(p.probe_seconds, {TEAMFORGE.probe_seconds}) AS seconds,
         (SELECT l.id FROM delivery_line l WHERE l.subscriber_id = s.subscriber_id AND l.lane = 'main') AS line_id
    FROM subscriptions_subscription s LEFT JOIN subscriptions_retrypolicy p ON p.id = s.retry_policy_id
   WHERE s.probe_due_at <= clock_timestamp() AND s.paused_by = 'POLICY'
   ORDER BY s.probe_due_at LIMIT 500 FOR NO KEY UPDATE OF s SKIP LOCKED),
begun AS (
  UPDATE subscriptions_subscription s
     SET on_trial = d.monitor_url = '', probe_due_at = clock_timestamp() + make_interval(secs => d.seconds)
    FROM due d WHERE s.id = d.id)
SELECT d.id, d.monitor_url, d.line_id,
       (SELECT o.id FROM delivery_open o
         WHERE o.subscription_id = d.id AND o.due_at IS NULL ORDER BY o.id LIMIT 1) IS NOT NULL
       OR (SELECT o.id FROM delivery_open o
            WHERE o.subscription_id = d.id AND o.line_id = d.line_id AND o.due_at < {FIRST_SENTINEL}
            ORDER BY o.due_at, o.id LIMIT 1) IS NOT NULL
  FROM due d
"""
"""A trial that nothing has come of yet is looked at again after as long: what it was to send may be gone."""

monitors: Final = Monitors()


def probe() -> int:
    """Begin a trial of each subscription whose probe is due, or ask its monitor URL; return how many those were.

    One of which nothing waits that could be tried goes on at once, or what waits apart would wait for ever.
    """
    _go_on(monitors.working(), "its monitor answers")
    with transaction.atomic():
        due = rows(BEGIN)
        _go_on([one for one, url, _, has_work in due if not url and not has_work], "nothing is left to be tried")
        lines = sorted({line_id for _, url, line_id, has_work in due if not url and has_work})
        transaction.on_commit(partial(wakeups.wake, wakeups.TOPIC, lines), robust=True)
    for subscription_id, url, *_ in due:
        if url:
            monitors.ask(subscription_id, url)
    return len(due)


def _go_on(subscription_ids: Sequence[int], reason: str) -> None:
    if subscription_ids:
        resume(subscription_ids, reason=reason, paused_by=[PausedBy.POLICY])
