"""The dashboard: what needs attention, how deliveries go, who works on them, and what to do first.

Each block takes a bounded number of queries. Those that read most are cached, for some seconds or until the next minute
is counted. So it costs about the same however many people look.
"""

import datetime as dt
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from django.conf import settings
from django.db.models import Count
from django.http import HttpRequest
from django.urls import reverse
from django.utils.safestring import SafeString

from analytics import live_numbers
from analytics.admin.live import GONE
from analytics.admin.sections import duration, per_cent
from analytics.alert_rules import are_numbers_late, is_beat_missing
from analytics.alerts import (
    beat_seen,
    blocked_lines,
    differing_clocks,
    failed_run,
    failing_subscribers,
    first_line,
    growing_backlog,
    is_without_workers,
    late_subscribers,
)
from analytics.live_numbers import DAY_MINUTES, HOUR_MINUTES, Counts, Numbers
from analytics.models import Run, RunState
from broker_project.core.admin.theme import badge, compact_table, label, link, relative, table
from broker_project.core.database_clock import DATABASE_CLOCK, described_difference
from delivery.admin.lines import LINE_COLOURS
from delivery.admin.read_only import STATUS_COLOURS, at_least, counted, link_to
from delivery.believed_clock import is_doubted
from delivery.dispatch.notify import listening_workers
from delivery.limits import MAX_DUE
from delivery.models import Delivery, Line, Message
from delivery.status.backlog import Backlog
from delivery.status.line_status import MAX_COUNTED, HeldLine, LineState, LineStatus, line_statuses
from delivery.status.queue_status import senders
from delivery.statuses import DeliveryStatus, WaitsFor
from subscriptions.models import ApiKey, EventType, Publisher, Subscriber, Subscription

MAX_ITEMS: Final = 10
"""Lines, or subscribers, that are shown for one reason; the others are counted."""
HEADS: Final = ("who", "what", "why", "since", "waiting", "next try")
Backlogs = Mapping[int, Backlog]
"""By subscriber."""
NEEDED: Final = ("delivery.view_line", "analytics.view_run")
"""The permissions that it takes to see how deliveries go."""


class Item(NamedTuple):
    """One thing that needs attention."""

    who: SafeString | str
    what: SafeString
    why: str
    since: SafeString | str = "-"
    waiting: str = "-"
    next_try: SafeString | str = "-"


def dashboard(request: HttpRequest, context: dict[str, Any]) -> dict[str, Any]:
    """Add to the context of the site's first page what it shows."""
    missing = [name for name in NEEDED if not request.user.has_perm(name)]
    if missing:
        return context | {"missing": missing}
    now = DATABASE_CLOCK.now()
    waiting = live_numbers.cached_backlogs()
    workers = listening_workers()
    newest, beat = live_numbers.last_minute(), beat_seen()
    counts = live_numbers.counts_by_subscriber(newest) if newest else None
    items = [
        *_stopped(workers, newest, beat, now),
        *_of_published(waiting, counts, newest, now),
        *_undecided(now),
        *_failed_run(now),
    ]
    own_items = [*_of_own_events(waiting, counts, now)]
    return context | {
        "now": now,
        "items": items and table(HEADS, items),
        "own_items": own_items and table(HEADS, own_items),
        "numbers": compact_table(["Ended in the", "Per minute", "Success", "p50", "p95", "p99"], _numbers(newest)),
        "counted_until": newest and newest + dt.timedelta(minutes=1),
        "waiting": at_least(
            sum(one.waiting for one in waiting.values()), is_cut=any(one.is_cut for one in waiting.values())
        ),
        "oldest": relative(min((one.oldest_since for one in waiting.values()), default=None), now),
        "senders": _senders(),
        "workers": _workers(workers or []),
        "beat": relative(beat, now),
        "last_run": Run.objects.filter(state=RunState.PASSED).order_by("-ended_at").first(),
        "flower": settings.FLOWER_URL,
        "steps": [] if Message.objects.exists() else _first_steps(),
        "publish_url": f"{settings.PUBLIC_URL or request.build_absolute_uri('/').rstrip('/')}/api/v1/events/",
        "example": EventType.objects.configured().order_by("pk").values_list("name", flat=True).first(),
    }


def _stopped(
    workers: Sequence[str] | None, newest: dt.datetime | None, beat: dt.datetime | None, now: dt.datetime
) -> Iterator[Item]:
    """Tell which parts of the broker were not seen lately."""
    if workers is None:
        yield Item("Redis", label("no answer", "danger"), "Deliveries go on without it, somewhat later.")
    if is_without_workers(workers):
        yield Item("Workers", label("none runs", "danger"), "Nothing is delivered. Messages are accepted and wait.")
    if newest and are_numbers_late(newest, now):
        why = "Live numbers are of then: no worker counts, or a transaction has been writing since."
        yield Item("Live numbers", label("late", "warning"), why, relative(newest, now))
    if is_beat_missing(beat, now):
        why = "No summary begins on schedule. Deliveries do not depend on it."
        yield Item("Celery beat", label("not seen", "warning"), why, relative(beat, now))
    if is_doubted():
        why = "It may have jumped ahead: nothing expires for ten minutes. Set it right, or confirm it."
        yield Item("Database clock", label("not believed", "warning"), why)
    for process, ahead in differing_clocks().items():
        why = f"It is {described_difference(ahead)}. Synchronize the clocks of all machines, for example with NTP."
        yield Item(f"Clock of {process}", label("differs", "warning"), why)


def _of_published(
    waiting: Backlogs, counts: Counts | None, newest: dt.datetime | None, now: dt.datetime
) -> Iterator[Item]:
    """Tell what goes wrong with what publishers have published: that for which alerts fire."""
    thresholds = settings.ALERT_THRESHOLDS
    yield from _held_up(blocked_lines(thresholds, now), late_subscribers(waiting, thresholds, now), now)
    if newest and counts:
        if number := growing_backlog(thresholds, newest, now):
            why = "More deliveries are due with every minute: start workers, or look for slow endpoints."
            yield Item("Backlog", label("grows", "warning"), why, waiting=at_least(number, is_cut=number >= MAX_DUE))
        yield from _failing(failing_subscribers(thresholds, counts.of_published), counts.of_published.minutes)


def _of_own_events(waiting: Backlogs, counts: Counts | None, now: dt.datetime) -> Iterator[Item]:
    """Tell what goes wrong only with the broker's own events: no alert fires for it (contract 11.8)."""
    thresholds = settings.ALERT_THRESHOLDS
    yield from _held_up(
        [
            one
            for one in live_numbers.cached_held_lines()
            if not one.published_since and thresholds.is_blocked(one.since, now)
        ],
        {k: one for k, one in waiting.items() if not one.published_since and thresholds.is_late(one.oldest_since, now)},
        now,
    )
    if counts:
        known = failing_subscribers(thresholds, counts.of_published)
        failing = failing_subscribers(thresholds, counts.of_all)
        yield from _failing({key: one for key, one in failing.items() if key not in known}, counts.of_all.minutes)


def _held_up(blocked: Sequence[HeldLine], late: Mapping[int, Backlog], now: dt.datetime) -> Iterator[Item]:
    """Tell which lines are held, and for which subscribers something has waited too long otherwise."""
    held = [one.line_id for one in blocked]
    lines = Line.objects.select_related("subscriber").in_bulk(held[:MAX_ITEMS])
    are_held = set(Line.objects.filter(pk__in=held).values_list("subscriber_id", flat=True))
    late = {key: one for key, one in late.items() if key not in are_held}
    latest = sorted(late, key=lambda key: late[key].published_since or late[key].oldest_since)[:MAX_ITEMS]
    names = _names_of(latest)
    statuses = line_statuses([*lines, *(late[key].oldest_line_id for key in latest)])
    yield from (_held(lines[pk], statuses[pk], now) for pk in held[:MAX_ITEMS] if pk in lines)
    for key in latest:
        if key in names and (status := statuses.get(late[key].oldest_line_id)):
            yield _late(names[key], status, late[key], now)
    if more := len(held) - len(lines) + len(late) - len(latest):
        yield _more(more, label("waiting", "warning"))


def _names_of(subscriber_ids: Sequence[int]) -> dict[int, str]:
    return dict(Subscriber.objects.filter(pk__in=subscriber_ids).values_list("pk", "name"))


def _more(number: int, what: SafeString) -> Item:
    """Return the item that counts those that are not shown."""
    return Item(link(reverse("admin:analytics_run_live"), f"{number} more"), what, "")


def _held(line: Line, status: LineStatus, now: dt.datetime) -> Item:
    hold = status.hold
    return Item(
        link_to("delivery_line", line.pk, line.owner),
        badge(LineState.HELD, LINE_COLOURS),
        hold.reason if hold else "-",
        relative(hold.since if hold else None, now),
        counted(status.waiting),
        relative(hold.next_try_at if hold else None, now),
    )


def _late(name: str, status: LineStatus, backlog: Backlog, now: dt.datetime) -> Item:
    is_in_mailbox = backlog.is_oldest_in_mailbox
    return Item(
        link_to("delivery_line", backlog.oldest_line_id, name),
        label("mailbox", "info") if is_in_mailbox else badge(status.state, LINE_COLOURS),
        "Nobody has acknowledged its oldest delivery." if is_in_mailbox else "Its oldest delivery has waited for long.",
        relative(backlog.published_since or backlog.oldest_since, now),
        at_least(backlog.waiting, is_cut=backlog.is_cut),
        "-" if is_in_mailbox else relative(status.deferred_due_at, now),
    )


def _failing(failing: Mapping[int, Numbers], minutes: int) -> Iterator[Item]:
    """Tell of which subscribers too much has failed in the last minutes, those with most failures first."""
    worst = sorted(failing, key=lambda key: (-failing[key].failed, key))[:MAX_ITEMS]
    names = _names_of(worst)
    address = reverse("admin:analytics_run_live")
    for key in worst:
        yield Item(
            link(f"{address}?subscriber={key}", names[key]) if key in names else GONE,
            label("failing", "danger"),
            f"{failing[key].failed:,} of {failing[key].eligible:,} deliveries failed in the last {minutes} min.",
        )
    if more := len(failing) - len(worst):
        yield _more(more, label("failing", "danger"))


def _undecided(now: dt.datetime) -> Iterator[Item]:
    """Tell how many deliveries an operator has to release or cancel."""
    held = Delivery.objects.open().filter(waits_for=WaitsFor.RELEASE).oldest_first()
    if times := held.values_list("created_at", flat=True)[:MAX_COUNTED]:
        where = link(f"{reverse('admin:delivery_delivery_changelist')}?status__exact=HELD", "Deliveries")
        why = "Their reasons say why. Release or cancel them."
        badge_of_held = badge(DeliveryStatus.HELD, STATUS_COLOURS)
        yield Item(where, badge_of_held, why, relative(times[0], now), counted(len(times)))


def _failed_run(now: dt.datetime) -> Iterator[Item]:
    """Tell whether the run of Spark that has ended last has failed."""
    if run := failed_run():
        failed = badge(RunState.FAILED, {RunState.FAILED: "danger"})
        yield Item(link_to("analytics_run", run.pk, run), failed, first_line(run.error), relative(run.ended_at, now))


def _numbers(newest: dt.datetime | None) -> list[list[str]]:
    """Return a row for each span of time: its name, rate, success, and quantiles."""
    spans = {"last minute": 1, "last hour": HOUR_MINUTES, "last day": DAY_MINUTES}
    found = {
        name: live_numbers.total(newest, minutes) if newest else Numbers(minutes) for name, minutes in spans.items()
    }
    return [
        [name, f"{one.per_minute:,.1f}", per_cent(one.delivered, one.eligible)]
        + ([duration(ms) for ms in one.took] if one.took else ["-"] * 3)
        for name, one in found.items()
    ]


def _senders() -> SafeString | str:
    """Return how the QUEUE events are shared; empty if there were none."""
    found = [
        [link_to("delivery_line", one.line_id, one.queue), counted(one.line.waiting), one.in_flight]
        for one in senders()
    ]
    return compact_table(["Sender", "Waiting", "In flight"], found) if found else ""


def _workers(names: Sequence[str]) -> list[tuple[str, int]]:
    """Return each worker that is seen, with the number of lines that it has."""
    leased = Line.objects.filter(lease_until__isnull=False).values_list("worker").annotate(Count("pk"))
    lines = dict(leased)
    return [(name, lines.get(name, 0)) for name in names]


def _first_steps() -> list[tuple[str, str, bool]]:
    """Return what to create before the first message: its title, where, and whether that is done."""
    made = {
        "Set up a webhook": (Subscription.objects.all(), "subscriptions_subscription_set_up"),
        "Create a publisher": (Publisher.objects.all(), "subscriptions_publisher_add"),
        "Create an API key for the publisher": (
            ApiKey.objects.filter(publisher__isnull=False),
            "subscriptions_apikey_add",
        ),
    }
    return [(title, reverse(f"admin:{page}"), rows.exists()) for title, (rows, page) in made.items()]
