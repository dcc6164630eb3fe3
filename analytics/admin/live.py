"""The page of live numbers: all subscribers in a table that can be sorted, or the event types of one."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, Final, NamedTuple

from django.core.paginator import Paginator
from django.http import Http404, HttpRequest, HttpResponse
from django.utils import timezone
from django.utils.safestring import SafeString

from analytics import live_numbers
from analytics.admin.sections import duration, per_cent
from analytics.dashboard_queries import QUANTILES, Quantiles
from analytics.live_numbers import MINUTE, LastMinutes, Numbers
from broker_project.core.admin.model_admin import ModelAdmin
from broker_project.core.admin.theme import link, relative
from delivery.admin.read_only import MAX_SHOWN, at_least, id_in, link_to
from delivery.status.backlog import Backlog, backlogs
from subscriptions.models import EventType, Subscriber

REPLIES: Final = "(replies to callbacks)"
GONE: Final = "(deleted)"
HOURS: Final = ("1", "24", "48")
"""How far back the numbers of one subscriber may begin."""


class Row(NamedTuple):
    """One subscriber, or one of its event types."""

    id: int
    name: str
    numbers: Numbers
    backlog: Backlog | None = None
    bucket: int | None = None
    """Where the quantile is by which all subscribers are sorted: their times are read page by page."""
    took: Quantiles | None = None


@dataclass(frozen=True, slots=True)
class Column:
    """One column: how rows are sorted by it, and what it shows."""

    name: str
    title: str
    key: Callable[[Row], Any]
    """None sorts last, in both directions."""
    show: Callable[[Row], object]
    note: str = ""


def quantile_column(name: str) -> Column:
    """Return the column of a quantile."""

    def key(row: Row) -> float | None:
        return getattr(row.took, name, None) if row.bucket is None else row.bucket

    def show(row: Row) -> str:
        return duration(getattr(row.took, name)) if row.took else "-"

    return Column(name, name, key, show, "From published to delivered, without mailboxes, within 1 %.")


NUMBERS: Final = (
    Column(
        "rate",
        "Per minute",
        lambda row: row.numbers.deliveries,
        lambda row: f"{row.numbers.per_minute:,.1f}",
        "Deliveries that ended in a minute, on average.",
    ),
    Column(
        "success",
        "Success",
        lambda row: row.numbers.success,
        lambda row: per_cent(row.numbers.delivered, row.numbers.eligible),
        "Delivered, of those that ended; without cancelled ones and those that another endpoint took.",
    ),
    *(quantile_column(name) for name in QUANTILES),
)
WAITING: Final = (
    Column(
        "waiting",
        "Waiting",
        lambda row: row.backlog.waiting if row.backlog else 0,
        lambda row: at_least(row.backlog.waiting, is_cut=row.backlog.is_cut) if row.backlog else "0",
        "Unfinished deliveries now, without delayed ones.",
    ),
    Column(
        "oldest",
        "Oldest",
        lambda row: row.backlog and -row.backlog.oldest_since.timestamp(),
        lambda row: relative(row.backlog.oldest_since, timezone.now()) if row.backlog else "-",
        "When the oldest of them was published, or was due if it was delayed.",
    ),
)
BY_BACKLOG: Final = frozenset(column.name for column in WAITING)


def live_page(admin: ModelAdmin, request: HttpRequest) -> HttpResponse:
    """Return the table of all subscribers, or of the subscriber that the address names."""
    subscriber_id = id_in(request.GET, "subscriber")
    subscriber = Subscriber.objects.filter(pk=subscriber_id or 0).first()
    if "subscriber" in request.GET and subscriber is None:
        raise Http404
    sort = request.GET.get("sort", "-oldest" if not subscriber else "-rate")
    sorted_by = sort.removeprefix("-")
    hours = int(given) if (given := request.GET.get("hours", "")) in HOURS else 1
    last = _last_minutes(subscriber, hours)
    first = Column("name", "Event type" if subscriber else "Subscriber", lambda row: row.name, _first_cell(subscriber))
    columns = (first, *NUMBERS, *(() if subscriber else WAITING))
    wanted = str(request.GET.get("q", "")).strip()
    rows = [row for row in _rows(last, subscriber, sorted_by) if wanted.lower() in row.name.lower()]
    page = Paginator(_sorted(rows, columns, sort), MAX_SHOWN).get_page(request.GET.get("page"))
    shown = [*page] if subscriber else _completed(page, last, sorted_by)
    return admin.page(
        request,
        "analytics/live.html",
        f"Live numbers of {subscriber}" if subscriber else "Live numbers",
        last=last,
        heads=[_head(column, sort, request) for column in columns],
        rows=[[column.show(row) for column in columns] for row in shown],
        page=page,
        subscriber=subscriber,
        spans=[(f"{one} h", one, int(one) == hours) for one in HOURS] if subscriber else [],
        wanted=wanted,
        now=timezone.now(),
    )


def _last_minutes(subscriber: Subscriber | None, hours: int) -> LastMinutes | None:
    """Return the numbers; of all subscribers without times, because that would take longer."""
    newest = live_numbers.last_minute()
    if newest is None:
        return None
    if subscriber:
        return live_numbers.by_event_type(newest, subscriber.pk, hours)
    return live_numbers.counts_by_subscriber(newest).of_all


def _completed(page: Iterable[Row], last: LastMinutes | None, sorted_by: str) -> list[Row]:
    """Return the rows of a page with what is read only for them: the times, and what waits unless they sort by that."""
    rows = [*page]
    ids = [row.id for row in rows]
    waiting = {} if sorted_by in BY_BACKLOG else backlogs(ids)
    found = live_numbers.by_subscriber(last.until - MINUTE, ids).numbers if last else {}
    numbers = {row.id: found.get(row.id, row.numbers) for row in rows}
    return [
        row._replace(numbers=numbers[row.id], took=numbers[row.id].took, backlog=row.backlog or waiting.get(row.id))
        for row in rows
    ]


def _rows(last: LastMinutes | None, subscriber: Subscriber | None, sorted_by: str) -> list[Row]:
    """Return all subscribers, also those of which nothing ended; of one, the event types of which something ended.

    Of all subscribers with no more than they are sorted by: the rest would take as long again.
    """
    numbers = last.numbers if last else {}
    nothing = Numbers(last.minutes if last else 1)
    if subscriber:
        names = dict(EventType.objects.filter(pk__in=numbers).values_list("pk", "name"))
        return [Row(key, names.get(key, GONE), one, took=one.took) for key, one in numbers.items()]
    named = dict(Subscriber.objects.values_list("pk", "name"))
    names = {**dict.fromkeys(numbers, GONE), **({0: REPLIES} if 0 in numbers else {}), **named}
    share = QUANTILES.get(sorted_by)
    buckets = live_numbers.quantile_buckets(last.until - MINUTE, share) if last and share else {}
    waiting = live_numbers.cached_backlogs() if sorted_by in BY_BACKLOG else {}
    return [
        Row(key, name, numbers.get(key, nothing), waiting.get(key), buckets.get(key)) for key, name in names.items()
    ]


def _sorted(rows: Sequence[Row], columns: Sequence[Column], sort: str) -> list[Row]:
    """Return the rows sorted by a column, in descending order after a minus, then by name."""
    by_name = {column.name: column for column in columns}
    key = by_name.get(sort.removeprefix("-"), columns[0]).key
    keyed = [(key(row), row) for row in sorted(rows, key=lambda row: row.name)]
    known = [(value, row) for value, row in keyed if value is not None]
    in_order = sorted(known, key=itemgetter(0), reverse=sort.startswith("-"))
    return [row for _, row in in_order] + [row for value, row in keyed if value is None]


def _head(column: Column, sort: str, request: HttpRequest) -> Mapping[str, str]:
    """Return what the head of a column shows, and the address that sorts by it, in the other direction if it does."""
    direction = {column.name: "ascending", f"-{column.name}": "descending"}.get(sort, "none")
    first = "" if column.name == "name" else "-"
    turned = f"-{column.name}" if direction == "ascending" or (direction == "none" and first) else column.name
    query = request.GET.copy()
    query.pop("page", None)
    query["sort"] = turned
    return {"title": column.title, "note": column.note, "direction": direction, "query": query.urlencode()}


def _first_cell(subscriber: Subscriber | None) -> Callable[[Row], SafeString | str]:
    """Return what the first column shows: the name, which leads to the event types of a subscriber."""
    if subscriber:
        return lambda row: link_to("subscriptions_eventtype", row.id, row.name) if row.name != GONE else GONE
    return lambda row: link(f"?subscriber={row.id}", row.name) if row.name not in {REPLIES, GONE} else row.name
