"""Acts on many deliveries: on those chosen in a list, or all that its filters find, counted first (contract 5.12)."""

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from time import monotonic
from typing import Any, Final

from django.conf import settings
from django.contrib import admin, messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.admin.models import CHANGE, LogEntry
from django.contrib.admin.options import IncorrectLookupParameters
from django.core import signing
from django.core.exceptions import BadRequest, PermissionDenied
from django.db import transaction
from django.db.models import Exists, OuterRef, Q, QuerySet
from django.db.models.functions import Now
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils import timezone

from broker_project.core.admin.lists import KeysetPage
from broker_project.core.admin.model_admin import CONFIRMED, MAX_CHOSEN, ModelAdmin
from broker_project.core.admin.theme import progress
from broker_project.core.api.fields import MAX_ID
from broker_project.core.api.pagination import Search, Stretch, ids_along
from broker_project.core.durations import rough
from delivery.admin.read_only import at_least, plural
from delivery.models import OPEN_SHELF, Delivery
from delivery.operations import cancel, release, try_now
from delivery.publish.errors import Refusal
from delivery.publish.publish import publish_terms
from delivery.replay.eligibility import RESUBMITTABLE, RESUBMITTABLE_REPLIES
from delivery.replay.resubmit import NoLongerKept, NotResubmittable, resubmit
from delivery.statuses import DeliveryStatus, WaitsFor

MAX_COUNTED: Final = 10_000
BATCH: Final = 200
"""Deliveries between two looks at the clock."""
STEP_SECONDS: Final = 2.0
"""After this time a page shows the progress, and goes on by itself."""
SALT: Final = "delivery.admin.bulk"
SEAL_SECONDS: Final = 3600
TOO_OLD: Final = "The count is more than an hour old. Everything was counted again; what has been done stays done."
IN_A_PAUSE: Final = Q(status=DeliveryStatus.PENDING, closed_on=OPEN_SHELF) & (
    Q(waits_for=WaitsFor.RETRY, due_at__gt=Now())
    | Q(hold__due_at__gt=Now())
    | Q(group__waits_for=WaitsFor.RETRY, group__due_at__gt=Now())
)
"""What waits to be tried again, by itself, held in its line, or with its QUEUE group (contract 5.11)."""
SENT_AGAIN: Final = Exists(Delivery.objects.filter(resubmit_of=OuterRef("pk")))


@dataclass(frozen=True, slots=True)
class Act:
    """What can be done to many deliveries."""

    name: str
    title: str
    phrase: str
    """What is asked, with how many in the place of {}."""
    done: str
    note: str
    permission: str
    """Of the `has_…_permission` methods."""
    which: Q
    """Those that it does something to."""
    do: Callable[[Sequence[int]], Sequence[int]]
    """Does it, and returns those that it was done to."""
    at_once: int = 200
    """Deliveries of one transaction."""

    def applies_to(self, ids: Sequence[int]) -> QuerySet[Delivery]:
        """Return those of these deliveries that it does something to."""
        return Delivery.objects.filter(self.which, pk__in=ids).order_by("pk")

    def run(self, request: HttpRequest, ids: Sequence[int]) -> int:
        """Do it, note it in the history of each, and return to how many it was done."""
        number = 0
        for first in range(0, len(ids), self.at_once):
            with transaction.atomic():
                done = self.do(ids[first : first + self.at_once])
                rows = Delivery.objects.filter(pk__in=done)
                LogEntry.objects.log_actions(request.user.pk or 0, rows, CHANGE, f"{self.done}.")
            number += len(done)
        return number


def _resubmit(ids: Sequence[int]) -> list[int]:
    sent = []
    for one in ids:
        with suppress(NotResubmittable, NoLongerKept, Refusal):
            resubmit(one, publish_terms(), edit=None, max_bytes=settings.MAX_BODY_BYTES, once=True)
            sent.append(one)
    return sent


RELEASE: Final = Act(
    *("release", "Release", "Release {}", "Released"),
    "Each is sent at its place in the line, regardless of its filter; its script runs again.",
    "release",
    Q(status=DeliveryStatus.HELD, closed_on=OPEN_SHELF),
    release,
)
TRY_NOW: Final = Act(
    *("try_now", "Try now", "Try {} now", "Tried now"),
    "The pause ends. Pauses of the subscription, suspensions and rate limits still hold.",
    "release",
    IN_A_PAUSE,
    try_now,
)
CANCEL: Final = Act(
    *("cancel", "Cancel", "Cancel {}", "Cancelled"),
    "What waits ends as cancelled. What is in flight does unless its answer ends it otherwise.",
    "release",
    Q(closed_on=OPEN_SHELF, cancel_requested=False),
    partial(cancel, reason="cancelled in the admin"),
)
RESUBMIT: Final = Act(
    *("resubmit", "Resubmit", "Resubmit {}", "Resubmitted"),
    "Each is sent again as a new delivery, behind those that wait. What was sent again already is left out.",
    "replay",
    (Q(status__in=[*RESUBMITTABLE]) | Q(status__in=[*RESUBMITTABLE_REPLIES], subscription=None))
    & Q(closed_on__lt=OPEN_SHELF)
    & ~Q(SENT_AGAIN),
    _resubmit,
    at_once=1,
)
ACTS: Final = {act.name: act for act in (RESUBMIT, RELEASE, TRY_NOW, CANCEL)}


def chosen_action(act: Act) -> Callable[..., HttpResponse | None]:
    """Declare the action of a list that asks, and then does it to the chosen."""

    @admin.action(description=act.title, permissions=[act.permission])
    def run(pages: ModelAdmin, request: HttpRequest, chosen: "QuerySet[Delivery]") -> HttpResponse | None:
        if CONFIRMED in request.POST:  # what was asked about, though the list may have moved on
            affected = act.applies_to([*map(int, request.POST.getlist(ACTION_CHECKBOX_NAME)[:MAX_CHOSEN])])
            number = act.run(request, [one.pk for one in affected])
            level = messages.SUCCESS if number else messages.WARNING
            pages.message_user(request, f"{act.done}: {plural(number)}.", level)
            return None
        affected = act.applies_to([*chosen.order_by("pk").values_list("pk", flat=True)[:MAX_CHOSEN]])
        title = act.phrase.format(plural(len(affected)))
        return pages.confirmation(request, f"{title}? {act.note}", affected, submit=title)

    return run


def all_page(pages: Any, request: HttpRequest) -> HttpResponse:
    """Count what the list's filters find, and offer what can be done to all of it; then do it, step by step."""
    listed = f"{pages.list_url()}?{request.GET.urlencode()}"
    try:
        page: KeysetPage = pages.get_changelist_instance(request)
    except IncorrectLookupParameters:
        return HttpResponseRedirect(pages.list_url())
    if not (page.query or [*page.chips()]):
        pages.message_user(request, "Filter the list first: this is for what the filters find.", messages.WARNING)
        return HttpResponseRedirect(listed)
    search = page.search(request) or Search(ids_along(page.queryset.order_by(), 0, MAX_ID))
    offered = {act.name: act for act in ACTS.values() if getattr(pages, f"has_{act.permission}_permission")(request)}
    context: dict[str, Any] = {"listed": listed, "chips": [words for words, _ in page.chips()]}
    if request.method == "POST":
        return _go_on(pages, request, search, offered, context)
    ids, stopped = search.found(Stretch(None, downwards=True, limit=MAX_COUNTED + 1))
    is_cut = stopped is not None or len(ids) > MAX_COUNTED
    ids = ids[:MAX_COUNTED]
    statuses = Counter(Delivery.objects.filter(pk__in=ids).values_list("status", flat=True))
    by_act = [(act, act.applies_to(ids).count()) for act in offered.values()]
    newest = ids[0] + 1 if ids else stopped  # what comes later was not asked about
    acts = [
        (act, act.phrase.format(at_least(number, is_cut=is_cut)), _seal(act, total=number, key=newest))
        for act, number in by_act
        if number or is_cut
    ]
    context |= {"number": at_least(len(ids), is_cut=is_cut), "acts": acts}
    context["statuses"] = ", ".join(f"{number:,} {DeliveryStatus(one).label}" for one, number in statuses.items())
    return pages.page(request, "delivery/act_on_all.html", "Act on all", **context)  # type: ignore[no-any-return]


def _seal(act: Act, **more: Any) -> str:
    """Return how far an act is, signed."""
    began = {"act": act.name, "seen": 0, "done": 0, "began": timezone.now().timestamp()}
    return signing.dumps({**began, **more}, salt=SALT)


def _go_on(
    pages: Any, request: HttpRequest, search: Search, offered: dict[str, Act], context: dict[str, Any]
) -> HttpResponse:
    """Do the act to the next deliveries for some seconds, and show how far it is."""
    try:
        state = signing.loads(request.POST.get("state", ""), salt=SALT, max_age=SEAL_SECONDS)
    except signing.SignatureExpired:
        pages.message_user(request, TOO_OLD, messages.WARNING)
        return HttpResponseRedirect(request.get_full_path())
    except signing.BadSignature:
        raise BadRequest from None
    if state["act"] not in offered:
        raise PermissionDenied
    act, until = offered[state["act"]], monotonic() + STEP_SECONDS
    is_over = False
    while not is_over and monotonic() < until:
        ids, stopped = search.found(Stretch(state["key"], downwards=True, limit=BATCH))
        affected = [*act.applies_to(ids).values_list("pk", flat=True)]
        state["done"] += act.run(request, affected)
        state["seen"] += len(affected)
        state["key"] = ids[-1] if stopped is None and ids else stopped
        is_over = stopped is None and len(ids) < BATCH
    if is_over:
        pages.message_user(request, f"{act.done}: {plural(state['done'])}.", messages.SUCCESS)
        return HttpResponseRedirect(context["listed"])
    total, seconds = max(state["total"], state["seen"]), timezone.now().timestamp() - state["began"]
    left = rough(seconds * (total - state["seen"]) / max(1, state["seen"]))
    bar = progress(100 * state["seen"] // max(1, total), f"{act.done}: {state['done']:,} of {total:,}")
    context |= {"act": act, "state": signing.dumps(state, salt=SALT), "bar": bar, "left": left}
    return pages.page(request, "delivery/act_on_all.html", act.title, **context)  # type: ignore[no-any-return]
