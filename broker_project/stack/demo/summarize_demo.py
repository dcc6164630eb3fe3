"""Have what happened since an instant summarized, and print the demo's part of it as JSON.

Run as a module with the application's environment: the instant, and what stands behind every name of the demo. The
worker of the queue `analytics` does it, as for everybody; this asks, waits and looks.
"""

import dataclasses
import datetime as dt
import json
import sys
import time
from collections import Counter
from collections.abc import Callable

import django
from django.db.models import Model, Q, QuerySet, Sum

django.setup()  # before any model is imported

from analytics import run_records, run_requests
from analytics.models import UNFINISHED_RUNS, Run, RunState, rows_of
from analytics.pipeline.quantiles import merged, quantile
from analytics.pipeline.tables import AUDIT, LATENCY, RELIABILITY, SENDERS, VOLUME
from broker_project.stack.demo.events import KINDS, SUBSCRIBERS
from broker_project.stack.demo.summary import Summary

LOOK_EVERY = 0.2
TELL_EVERY = 10.0
MAX_SECONDS = 300.0
"""Nobody waits longer for a worker that does not come; what is under way ends in its own time."""


def summarize(since: dt.datetime, suffix: str) -> Summary:
    """Return the figures; with an `error` only, where there are none."""
    began = time.monotonic()
    run = run_requests.request_range(since, run_requests.now())
    _wait_for(run, lambda text: print(text, file=sys.stderr, flush=True))
    if run.state != RunState.PASSED:
        return Summary(error=why_not(run), seconds=0.0)
    return figures(run, suffix, time.monotonic() - began)


def _wait_for(run: Run, tell: Callable[[str], object]) -> None:
    """Wait until it has ended, or nobody takes it up though nothing else is under way."""
    told = idle = began = time.monotonic()
    while run.state in UNFINISHED_RUNS and time.monotonic() - idle < MAX_SECONDS:
        time.sleep(LOOK_EVERY)
        run_records.abandon_vanished()
        run.refresh_from_db()
        if Run.objects.filter(state=RunState.RUNNING).exists():
            idle = time.monotonic()
        if time.monotonic() - told > TELL_EVERY:
            told = time.monotonic()
            tell(f"  {standing(run)} ({told - began:.0f} s)")


def standing(run: Run) -> str:
    """Return where a run stands, for whoever waits for it."""
    if run.state == RunState.WAITING:
        other = Run.objects.filter(state=RunState.RUNNING).first()
        return f"{run} waits for {other or 'a worker of the queue analytics'}"
    done = run.windows.count()
    return f"{run} is under way, {done} of its windows done" if done else f"{run} is under way: Spark starts, and reads"


def why_not(run: Run) -> str:
    """Return why a run has no summary."""
    if run.state == RunState.WAITING:
        return f"no worker of the queue analytics has taken up {run} within {MAX_SECONDS:.0f} s"
    return f"{run} {run.state}: {run.error}"


def figures(run: Run, suffix: str, seconds: float) -> Summary:
    """Return what a run found of the demo's event types and subscribers."""
    hours = Q(hour__gte=run.windows.earliest("start").start)
    ours = hours & Q(event_type__in=[name + suffix for name in KINDS])
    reliability = rows_of(RELIABILITY).filter(ours)
    statuses = Counter[str]()
    for by_status in reliability.values_list("by_status", flat=True):
        statuses.update(by_status)
    histograms = rows_of(LATENCY).filter(ours, measure="delivery").values_list("histogram", flat=True)
    times = merged({int(bucket): count for bucket, count in one.items()} for one in histograms)
    audit = rows_of(AUDIT).filter(hours, subscriber__in=[sample.name + suffix for sample in SUBSCRIBERS])
    found = _total(audit, "inversions") + _total(audit, "duplicates")
    explained = _total(audit, "explained_inversions") + _total(audit, "explained_duplicates")
    volume = rows_of(VOLUME).filter(ours)
    senders = rows_of(SENDERS).filter(hours).order_by("sender").values("sender").annotate(all=Sum("messages"))
    return Summary(
        statuses=dict(statuses),
        delivered=_total(reliability, "delivered"),
        eligible=_total(reliability, "eligible"),
        p50_ms=quantile(times, 0.5) if times else 0.0,
        p95_ms=quantile(times, 0.95) if times else 0.0,
        messages=_total(volume, "messages"),
        bytes=_total(volume, "bytes"),
        senders=tuple(sender["all"] for sender in senders),
        audited=_total(audit, "checked"),
        unexplained=found - explained,
        seconds=seconds,
    )


def _total(rows: "QuerySet[Model]", column: str) -> int:
    return rows.aggregate(total=Sum(column))["total"] or 0


if __name__ == "__main__":
    instant, behind = sys.argv[1:]
    print(json.dumps(dataclasses.asdict(summarize(dt.datetime.fromisoformat(instant), behind))))
