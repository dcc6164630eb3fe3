"""What delivery adds to the pages of configuration: dry run, pause, backfill, test event, replay, cancel."""

from collections.abc import Collection, Sequence
from datetime import timedelta
from functools import partial
from typing import Any, ClassVar, Final

from django.conf import settings
from django.contrib import admin
from django.contrib.admin.views.main import ChangeList
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import get_object_or_404
from django.urls import URLPattern, path, reverse
from django.utils import timezone

from broker_project.core.admin.model_admin import Prefetched, action, column, permission, state_column
from broker_project.core.admin.theme import ActionVariant, relative
from delivery.admin.lines import LINE_COLOURS
from delivery.admin.read_only import at_least, counted, id_in, link_to_list, plural
from delivery.admin.replayable import replay_address
from delivery.admin.subscriber_page import NEEDED, head_of, overview_link, subscriber_page
from delivery.models import Delivery
from delivery.operations import cancel_deliveries_of
from delivery.pause import Backfilling, NotPausable, pause_one, resume_one
from delivery.playground.test_events import EndpointAnswer, NothingToSendTo, try_endpoint
from delivery.replay import backfill_job
from delivery.replay.eligibility import NotBegun
from delivery.status.delivery_search import deliveries_of
from delivery.status.line_status import MAX_COUNTED, unfinished_of
from delivery.status.sent_requests import text_of
from delivery.status.subscriber_status import SubscriberStatus, subscriber_statuses
from delivery.sync.answer import TooManyCalls
from subscriptions.admin.configured import INACTIVATING, record_actions
from subscriptions.admin.event_types import EventTypeAdmin
from subscriptions.admin.set_up import receiver_programs, set_up_page
from subscriptions.admin.subscriptions import SubscriberAdmin, SubscriptionAdmin
from subscriptions.endpoints import parse_endpoint
from subscriptions.models import EventKind, EventType, Status, Subscriber, Subscription
from subscriptions.names import is_own

CANCELLING: Final = "Cancel unfinished deliveries"
CANCEL_BUTTON: Final[dict[str, Any]] = {"submit": "Cancel deliveries", "variant": ActionVariant.DANGER}
BY_ADMIN: Final = "in the admin"
"""The reason of pauses, in a line's history."""
LATELY: Final = timedelta(hours=24)
MAX_TRIES: Final = 100
"""Test events that one page sends by itself, until one is taken."""
OF_DELIVERIES: Final = ("state", "waiting", "oldest")
"""Columns of the list of subscribers."""
STATUS: Final = Prefetched[Subscriber, SubscriberStatus](
    "status", lambda subscribers: subscriber_statuses(subscribers, timezone.now())
)
LESS_OFTEN_USED: Final = (
    *("send_test_event", "backfill", "replay", "test_filter"),
    *("rotate_secret", "end_overlap", "cancel", "inactivate"),
)


def _pause(subscription: Subscription) -> str:
    pause_one(subscription.pk, reason=BY_ADMIN)
    return "Paused."


def _resume(subscription: Subscription) -> str:
    resume_one(subscription.pk, reason=BY_ADMIN)
    return "Resumed."


def _cancel(subscription: Subscription) -> str:
    done = cancel_deliveries_of(subscription.pk, reason="cancelled in the admin")
    told = [f"Cancelled {plural(done.ended)}"]
    if done.in_flight:
        told.append(f"{done.in_flight} in flight will be cancelled unless their answer settles them first")
    if not done.is_complete:
        told.append("there is more, so cancel again")
    return "; ".join(told) + "."


admin.site.unregister([EventType, Subscriber, Subscription])


@admin.register(EventType)
class DeliveredEventTypeAdmin(EventTypeAdmin):
    """An event type, with a way to ask who would get an event of it."""

    actions_detail: ClassVar[tuple[str, ...]] = ("dry_run",)

    @action(
        description="Who would get it?",
        permissions=["view"],
        icon="fact_check",
        offered=lambda event_type: not is_own(event_type.name),
    )
    def dry_run(self, request: HttpRequest, object_id: str) -> HttpResponse:  # noqa: ARG002 - unfold's signature
        """Lead to the dry run with its sample."""
        return HttpResponseRedirect(f"{reverse('admin:delivery_message_dry_run')}?event_type={object_id}")


@admin.register(Subscriber)
class DeliveredSubscriberAdmin(SubscriberAdmin):
    """A subscriber as a place: each of its pages says how it is doing, and leads to the others."""

    list_display = ("place", "state", "waiting", "oldest", *SubscriberAdmin.list_display[1:])
    list_display_links = None
    change_form_outer_before_template = "delivery/subscriber_head.html"

    place = column("name", overview_link, ordering="name")
    state = state_column("state", lambda subscriber: STATUS.of(subscriber).state, LINE_COLOURS)
    waiting = column(
        "waiting", lambda subscriber: at_least(STATUS.of(subscriber).waiting, is_cut=STATUS.of(subscriber).is_cut)
    )
    oldest = column("oldest", lambda subscriber: relative(STATUS.of(subscriber).oldest_since))

    def get_urls(self) -> list[URLPattern]:
        """Return the addresses of its pages too."""
        page = self.admin_site.admin_view(partial(subscriber_page, self))
        place = path("<int:object_id>/<slug:tab>/", page, name="subscriptions_subscriber_place")
        *others, any_other = super().get_urls()
        return [*others, place, any_other]

    def get_list_display(self, request: HttpRequest) -> list[Any]:
        """Return the columns that the user may see."""
        columns = super().get_list_display(request)
        return columns if request.user.has_perm(NEEDED) else [one for one in columns if one not in OF_DELIVERIES]

    def get_changelist_instance(self, request: HttpRequest) -> ChangeList:
        """Return a page of the list, with the states of all its subscribers read at once."""
        page: ChangeList = super().get_changelist_instance(request)
        if request.user.has_perm(NEEDED):
            STATUS.load(page.result_list)
        return page

    def render_change_form(
        self, request: HttpRequest, context: dict[str, Any], *args: Any, obj: Subscriber | None = None, **options: Any
    ) -> HttpResponse:
        """Show above its settings how it is doing."""
        if obj:
            context |= head_of(obj, request, "Settings")
        return super().render_change_form(request, context, *args, obj=obj, **options)  # type: ignore[no-any-return]

    def inactivating(self, chosen: Sequence[Subscriber]) -> str:
        """Ask, with what all subscriptions of these were given lately."""
        return _inactivation_question(Subscription.objects.filter(subscriber__in=chosen))


@admin.register(Subscription)
class DeliveredSubscriptionAdmin(SubscriptionAdmin):
    """A subscription, with a link to its deliveries, and all that can be done with them."""

    shown_template = "delivery/subscription_shown.html"
    actions = (*SubscriptionAdmin.actions, "pause_chosen", "resume_chosen", "cancel_chosen")
    actions_detail: ClassVar[tuple[Any, ...]] = (
        *("activate", "pause", "resume"),
        {"title": "More", "items": [*LESS_OFTEN_USED]},
    )

    delivery_list = column(
        "deliveries",
        lambda subscription: link_to_list(
            "delivery_delivery", "its deliveries", subscription__id__exact=subscription.pk
        ),
    )

    has_pause_permission = permission("subscriptions.pause")
    has_replay_permission = permission("delivery.replay")

    pause, pause_chosen = record_actions(
        "Pause",
        "No message is lost: new ones are stored and wait. Nothing is sent until the subscription is resumed.",
        _pause,
        permission="pause",
        refusals=(NotPausable, Backfilling),
        icon="pause",
        variant=ActionVariant.PRIMARY,
        offered=lambda subscription: subscription.kind != EventKind.SYNC and subscription.paused_since is None,
    )
    resume, resume_chosen = record_actions(
        "Resume",
        "What waits is sent in order.",
        _resume,
        permission="pause",
        refusals=(NotPausable, Backfilling),
        icon="play_circle",
        variant=ActionVariant.SUCCESS,
        offered=lambda subscription: subscription.kind != EventKind.SYNC and subscription.paused_since is not None,
    )

    def inactivating(self, chosen: Sequence[Subscription]) -> str:
        """Ask, with what these were given lately, and the way to lose nothing."""
        return f"{_inactivation_question(chosen)} To lose nothing, pause instead."

    def get_readonly_fields(self, request: HttpRequest, obj: Subscription | None = None) -> tuple[str, ...]:
        """Return the link too."""
        return (*super().get_readonly_fields(request, obj), *(("delivery_list",) if obj else ()))

    def get_urls(self) -> list[URLPattern]:
        """Return the address of the form that sets up a webhook too."""
        view = self.admin_site.admin_view(partial(set_up_page, self))
        return [path("set-up/", view, name="subscriptions_subscription_set_up"), *super().get_urls()]

    def shown_besides(self, request: HttpRequest, record: Subscription, secret: str) -> dict[str, object]:
        """Return programs for the receiver, and the subscription if the user may send test events."""
        if not record.is_called:
            return {}
        programs = receiver_programs(parse_endpoint(record.endpoint), secret)
        return {"programs": programs, "subscription": record if self.has_change_permission(request, record) else None}

    @action(
        description="Backfill",
        permissions=["replay", "change"],
        icon="history",
        refusals=(NotBegun,),
        offered=lambda subscription: subscription.kind == EventKind.TOPIC and subscription.status == Status.INACTIVE,
    )
    def backfill(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Count, ask, then activate it and deliver stored messages to it."""
        subscription = get_object_or_404(self.only(object_id).select_related("event_type", "subscriber"))
        if request.method == "POST":
            begun = backfill_job.begin(subscription.pk, since=None, created_by=str(request.user))
            self.log_change(request, subscription, "Backfilled.")
            return HttpResponseRedirect(reverse("admin:delivery_replay_change", args=[begun.pk]))
        found = backfill_job.count(subscription, None)
        question = (
            "Activate this subscription and deliver all stored messages to it in order, then new ones?"
            f" Stored messages, before any filter: {found.total}{'' if found.complete else ' or more'}."
        )
        return self.confirmation(
            request, question, [subscription], submit="Activate and backfill", back=self.change_url(object_id)
        )

    @action(
        description="Send test event",
        permissions=["change"],
        icon="outgoing_mail",
        offered=lambda subscription: subscription.is_called,
    )
    def send_test_event(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Ask, then send one and show the answer; while it is not taken, the page sends another one after a pause."""
        subscription = get_object_or_404(self.only(object_id).select_related("event_type", "subscriber"))
        context: dict[str, object] = {"subscription": subscription}
        if request.method == "POST":
            context |= _sent_test_event(subscription, tries=(id_in(request.POST, "tries") or 0) + 1)
        return self.page(request, "delivery/test_event.html", f"Test event for {subscription}", **context)

    @action(
        description="Replay",
        permissions=["replay"],
        icon="replay",
        offered=lambda subscription: subscription.kind != EventKind.SYNC,
    )
    def replay(self, request: HttpRequest, object_id: str) -> HttpResponse:  # noqa: ARG002 - unfold's signature
        """Lead to the form of replays with this subscription; callers of SYNC subscriptions have their answers."""
        return HttpResponseRedirect(replay_address(subscription=object_id))

    @action(description="Test filter", permissions=["view"], icon="science")
    def test_filter(self, request: HttpRequest, object_id: str) -> HttpResponse:  # noqa: ARG002 - unfold's signature
        """Lead to the filter lab with its filters and the newest message."""
        return HttpResponseRedirect(f"{reverse('admin:delivery_message_filter_lab')}?subscription={object_id}")

    @action(description=CANCELLING, permissions=["change"], icon="cancel", variant=ActionVariant.DANGER)
    def cancel(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Ask, then cancel all unfinished deliveries of this one."""
        subscription = get_object_or_404(self.only(object_id))
        back = self.change_url(subscription.pk)
        if request.method != "POST":
            question = _cancel_question([subscription])
            return self.confirmation(request, question, [subscription], back=back, **CANCEL_BUTTON)
        self.report_change(request, subscription, _cancel(subscription))
        return HttpResponseRedirect(back)

    @admin.action(description=CANCELLING, permissions=["change"])
    def cancel_chosen(self, request: HttpRequest, chosen: QuerySet[Subscription]) -> HttpResponse | None:
        """Ask, then cancel all unfinished deliveries of these."""
        return self.each_confirmed(request, chosen, _cancel_question, _cancel, **CANCEL_BUTTON)


def _sent_test_event(subscription: Subscription, *, tries: int) -> dict[str, object]:
    """Send a test event, and return what its page shows of the answer."""
    try:
        answer = try_endpoint(subscription, egress=settings.EGRESS_POLICY)
    except (NothingToSendTo, TooManyCalls) as refused:
        answer = EndpointAnswer(reason=str(refused))
    return {
        "answer": answer,
        "head": text_of(answer.answer_headers),
        "excerpt": text_of(answer.answer_excerpt),
        "at": timezone.now(),
        "tries": tries,
        "tries_again": not answer.is_taken and tries < MAX_TRIES,
    }


def _inactivation_question(chosen: Collection[Subscription]) -> str:
    """Return what is asked before these are inactivated: what is lost, by what came lately, and what is kept."""
    ids = [one.pk for one in chosen]
    newest = deliveries_of(ids, None, key=None, downwards=True, limit=MAX_COUNTED)
    since = timezone.now() - LATELY
    lately = Delivery.objects.filter(pk__in=newest, created_at__gte=since).count()
    return (
        f"{INACTIVATING} In the last 24 hours that would have been {counted(lately)} deliveries."
        f" Unfinished deliveries, {counted(unfinished_of(ids))} now, are kept and not sent until then."
    )


def _cancel_question(chosen: Collection[Subscription]) -> str:
    number = counted(unfinished_of([one.pk for one in chosen]))
    return f"Cancel all unfinished deliveries, {number} now? They are never sent again; this cannot be undone."
