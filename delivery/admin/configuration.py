"""What delivery adds to the admin of subscribers and subscriptions: pause, backfill, test event, cancel."""

import secrets
from collections.abc import Callable
from typing import Any, ClassVar, Final

from django.conf import settings
from django.contrib import admin, messages
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import get_object_or_404
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils import timezone
from django.utils.safestring import SafeString

from broker_project.core.admin.theme import ActionVariant, action, after_dialog, dialog, display, label
from delivery.admin.line_work import main_line_of
from delivery.admin.mailbox_work import mailbox_link
from delivery.admin.read_only import link_to, link_to_list
from delivery.admin.replayable import replay_address
from delivery.operations import cancel_deliveries_of
from delivery.pause import Backfilling, NotPausable, pause_one, resume_one
from delivery.playground.test_events import ID_BYTES, NothingToSendTo, Rehearsed, rehearse, rehearsing_caller
from delivery.replay import backfill_job
from delivery.replay.eligibility import NotBegun
from delivery.status.line_status import MAX_COUNTED, unfinished_of
from delivery.sync.answer import TooManyCalls
from subscriptions.admin.subscribers import SubscriberAdmin
from subscriptions.admin.subscriptions import PAUSE, SubscriptionAdmin
from subscriptions.endpoints import SCRIPTED
from subscriptions.models import DeliveryMode, EventKind, Status, Subscriber, Subscription

PAUSING = "What is published for it is stored and waits; nothing is sent until it is resumed."
RESUMING = "What waits is sent, in order."
WHY = "in the admin"
REFUSALS = (NotPausable, Backfilling)

Turn = Callable[[Subscription], str]
"""Pauses or resumes one; returns what its history is to say."""

QUESTION = "Send it, in order, all messages that are kept of before, and then what is published from now on?"

MAX_SHOWN: Final = 300
"""Characters of the answer: what is said on the next page is kept until then."""
SENDING = "Its endpoint gets the event type's sample at once, marked as a test; nothing of it is stored."

CANCELLING = "Cancel unfinished deliveries"
MORE = ("send_test_event", "backfill", "replay", "test_filter", "rotate_secret", "end_overlap", "cancel")
"""What is done more rarely."""


class PausingAdmin(SubscriptionAdmin):
    """Subscriptions, which can be paused and resumed here."""

    actions = (*SubscriptionAdmin.actions, "pause_chosen", "resume_chosen")
    actions_detail = (*SubscriptionAdmin.actions_detail, "pause", "resume")

    def has_pause_permission(self, request: HttpRequest, object_id: object = None) -> bool:  # noqa: ARG002 - unfold's
        """Tell whether the user may pause and resume, which takes no permission to change anything else."""
        return request.user.has_perm("subscriptions.pause")

    def get_list_display(self, request: HttpRequest) -> tuple[str, ...]:  # noqa: ARG002 - Django's signature
        """Return the pause beside the status."""
        columns = [*self.list_display]
        columns.insert(columns.index("status_label") + 1, "pause_label")
        return tuple(columns)

    def get_readonly_fields(self, request: HttpRequest, obj: Subscription | None = None) -> tuple[str, ...]:
        """Return the pause too, if it is paused: that stands beside the status."""
        return (*super().get_readonly_fields(request, obj), *(PAUSE if obj and obj.paused_since else ()))

    def get_actions_detail(self, request: HttpRequest, object_id: int) -> list[Any]:
        """Offer only what changes something; SYNC subscriptions never pause."""
        offered = super().get_actions_detail(request, object_id)
        row = self.only(object_id).values_list("kind", "paused_since").first()
        useless = {"pause", "resume"} if row and row[0] == EventKind.SYNC else {"pause" if row and row[1] else "resume"}
        names = {self.get_unfold_action(name).action_name for name in useless}
        return [one for one in offered if one.action_name not in names]

    @display(description="paused")
    def pause_label(self, subscription: Subscription) -> SafeString | str:
        """Return whether it is paused, or tried."""
        if subscription.paused_since is None:
            return "-"
        return label("ON TRIAL" if subscription.half_open else "PAUSED", "warning")

    @action(
        description="Pause",
        permissions=["pause"],
        icon="pause_circle",
        variant=ActionVariant.WARNING,
        dialog=dialog("Pause?", PAUSING, "Pause"),
    )
    def pause(self, request: HttpRequest, _form: object, object_id: str) -> HttpResponse:
        """Pause one."""
        return self._turn(request, object_id, _pause)

    @action(
        description="Resume",
        permissions=["pause"],
        icon="play_circle",
        variant=ActionVariant.SUCCESS,
        dialog=dialog("Resume?", RESUMING, "Resume"),
    )
    def resume(self, request: HttpRequest, _form: object, object_id: str) -> HttpResponse:
        """Resume one."""
        return self._turn(request, object_id, _resume)

    @admin.action(description="Pause", permissions=["pause"])
    def pause_chosen(self, request: HttpRequest, chosen: QuerySet[Subscription]) -> HttpResponse | None:
        """Ask, then pause many."""
        return self.each_confirmed(request, chosen, f"Pause these? {PAUSING}", _if_possible(_pause))

    @admin.action(description="Resume", permissions=["pause"])
    def resume_chosen(self, request: HttpRequest, chosen: QuerySet[Subscription]) -> HttpResponse | None:
        """Ask, then resume many."""
        return self.each_confirmed(request, chosen, f"Resume these? {RESUMING}", _if_possible(_resume))

    def _turn(self, request: HttpRequest, object_id: str, turn: Turn) -> HttpResponse:
        subscription = self.only(object_id).get()
        try:
            note = turn(subscription)
        except REFUSALS as refused:
            self.message_user(request, str(refused), messages.WARNING)
        else:
            self.log_change(request, subscription, note)
            self.message_user(request, note, messages.SUCCESS)
        return after_dialog(request, self.page_of(object_id))


def _pause(subscription: Subscription) -> str:
    pause_one(subscription.pk, reason=WHY)
    return "Is paused now."


def _resume(subscription: Subscription) -> str:
    resume_one(subscription.pk, reason=WHY)
    return "Goes on now."


def _if_possible(turn: Turn) -> Turn:
    """Return the same for many: where one is refused, its history says so."""

    def turned(subscription: Subscription) -> str:
        try:
            return turn(subscription)
        except REFUSALS as refused:
            return f"Not done. {refused}"

    return turned


class BackfillingAdmin(PausingAdmin):
    """Subscriptions, of which those that are new can get what was published before them."""

    actions_detail = (*PausingAdmin.actions_detail, "backfill")

    def has_backfill_permission(self, request: HttpRequest, object_id: object = None) -> bool:  # noqa: ARG002 - unfold's
        """Tell whether the user may send what was published before, and may let the subscription begin."""
        return request.user.has_perms(["delivery.replay", "subscriptions.change_subscription"])

    def get_actions_detail(self, request: HttpRequest, object_id: int) -> list[Any]:
        """Offer it only of what is inactive, and may be new."""
        offered = super().get_actions_detail(request, object_id)
        wanted = Subscription.objects.filter(pk=object_id, kind=EventKind.TOPIC, status=Status.INACTIVE)
        return offered if wanted.exists() else [one for one in offered if one.path != "backfill"]

    @action(description="Backfill", permissions=["backfill"], icon="history")
    def backfill(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Count, ask, then let it get what is kept of before."""
        subscription = get_object_or_404(self.only(object_id).select_related("event_type", "subscriber"))
        try:
            if request.method == "POST":
                return self._begin(request, subscription)
            counted = backfill_job.count(subscription, None)
        except NotBegun as refused:
            self.message_user(request, str(refused), messages.WARNING)
            return HttpResponseRedirect(self.page_of(object_id))
        found = f"{counted.messages}{'' if counted.complete else ' or more'}"
        context = {
            **self.admin_site.each_context(request),
            "title": f"{QUESTION} There are {found} to look at, before any filter.",
            "chosen": [subscription],
            "back": self.page_of(object_id),
            "opts": self.opts,
        }
        return TemplateResponse(request, "subscriptions/confirm.html", context)

    def _begin(self, request: HttpRequest, subscription: Subscription) -> HttpResponse:
        begun = backfill_job.begin(subscription.pk, since=None, created_by=str(request.user))
        self.log_change(request, subscription, "Backfilled.")
        return HttpResponseRedirect(reverse("admin:delivery_replay_change", args=[begun.pk]))


class RehearsingAdmin(BackfillingAdmin):
    """Subscriptions, whose endpoints can be sent a test event."""

    actions_detail = (*BackfillingAdmin.actions_detail, "send_test_event")

    def get_actions_detail(self, request: HttpRequest, object_id: int) -> list[Any]:
        """Offer it only where something is sent."""
        offered = super().get_actions_detail(request, object_id)
        sent = self.only(object_id).filter(delivery_mode=DeliveryMode.PUSH).exclude(endpoint__startswith=SCRIPTED)
        return offered if sent.exists() else [one for one in offered if one.path != "send_test_event"]

    @action(
        description="Send test event",
        permissions=["change"],
        icon="outgoing_mail",
        dialog=dialog("Send a test event?", SENDING, "Send"),
    )
    def send_test_event(self, request: HttpRequest, _form: object, object_id: str) -> HttpResponse:
        """Send one, and say what came back."""
        subscription = get_object_or_404(self.only(object_id).select_related("event_type"))
        caller, random_bytes = rehearsing_caller(settings.EGRESS_POLICY), secrets.token_bytes(ID_BYTES)
        try:
            rehearsed = rehearse(subscription, caller=caller, random_bytes=random_bytes, now=timezone.now())
            level = messages.SUCCESS if rehearsed.is_taken else messages.ERROR
            in_full = request.user.has_perm("delivery.view_payload")
            self.message_user(request, _told(rehearsed, in_full=in_full), level)
        except (NothingToSendTo, TooManyCalls) as refused:
            self.message_user(request, str(refused), messages.WARNING)
        return after_dialog(request, self.page_of(object_id))


def _told(rehearsed: Rehearsed, *, in_full: bool) -> str:
    if rehearsed.status_code is None:
        return f"No answer after {rehearsed.duration_ms} ms: {rehearsed.reason}"
    answered = f"Answered {rehearsed.status_code} after {rehearsed.duration_ms} ms"
    excerpt = rehearsed.answer_excerpt.decode("utf-8", "replace")[:MAX_SHOWN]
    return f"{answered}: {excerpt}" if excerpt and in_full else f"{answered}."


admin.site.unregister([Subscriber, Subscription])


@admin.register(Subscriber)
class DeliveredSubscriberAdmin(SubscriberAdmin):
    """A subscriber, with its line, its mailbox, its subscriptions and its deliveries."""

    def get_readonly_fields(self, request: HttpRequest, obj: Subscriber | None = None) -> tuple[str, ...]:
        """Return the links too."""
        links = ("line_link", "mailbox", "subscription_list", "delivery_list") if obj else ()
        return (*super().get_readonly_fields(request, obj), *links)

    @display(description="line")
    def line_link(self, subscriber: Subscriber) -> SafeString | str:
        """Return a link to its line."""
        return link_to("delivery_line", main_line_of(subscriber), "how its line stands")

    @display(description="mailbox")
    def mailbox(self, subscriber: Subscriber) -> SafeString | str:
        """Return a link to its mailbox, if it has one, and how that stands."""
        return mailbox_link(subscriber)

    @display(description="subscriptions")
    def subscription_list(self, subscriber: Subscriber) -> SafeString:
        """Return a link to its subscriptions."""
        return link_to_list("subscriptions_subscription", "its subscriptions", subscriber__id__exact=subscriber.pk)

    @display(description="deliveries")
    def delivery_list(self, subscriber: Subscriber) -> SafeString:
        """Return a link to its deliveries."""
        return link_to_list("delivery_delivery", "its deliveries", line__id__exact=main_line_of(subscriber))


@admin.register(Subscription)
class DeliveredSubscriptionAdmin(RehearsingAdmin):
    """A subscription, with its deliveries, which can be cancelled and sent again from here."""

    actions = (*RehearsingAdmin.actions, "cancel_chosen")
    actions_detail: ClassVar[tuple[Any, ...]] = (
        *("activate", "inactivate", "pause", "resume"),
        {"title": "More", "items": [*MORE]},
    )

    def has_replay_permission(self, request: HttpRequest, object_id: object = None) -> bool:  # noqa: ARG002 - unfold's
        """Tell whether the user may send things again."""
        return request.user.has_perm("delivery.replay")

    def get_actions_detail(self, request: HttpRequest, object_id: int) -> list[Any]:
        """Offer replaying of all but SYNC subscriptions, whose callers have had their answers."""
        offered = super().get_actions_detail(request, object_id)
        is_sync = self.only(object_id).filter(kind=EventKind.SYNC).exists()
        return [one for one in offered if one.path != "replay"] if is_sync else offered

    def get_readonly_fields(self, request: HttpRequest, obj: Subscription | None = None) -> tuple[str, ...]:
        """Return the link too."""
        return (*super().get_readonly_fields(request, obj), *(("delivery_list",) if obj else ()))

    @display(description="deliveries")
    def delivery_list(self, subscription: Subscription) -> SafeString:
        """Return a link to its deliveries."""
        return link_to_list("delivery_delivery", "its deliveries", subscription__id__exact=subscription.pk)

    @action(description="Replay", permissions=["replay"], icon="replay")
    def replay(self, request: HttpRequest, object_id: str) -> HttpResponse:  # noqa: ARG002 - unfold's signature
        """Lead to the form of replays, with this one."""
        return HttpResponseRedirect(replay_address(subscription=object_id))

    @action(description="Test filter", permissions=["view"], icon="science")
    def test_filter(self, request: HttpRequest, object_id: str) -> HttpResponse:  # noqa: ARG002 - unfold's signature
        """Lead to the filter lab, with its filters and the newest message."""
        return HttpResponseRedirect(f"{reverse('admin:delivery_message_filter_lab')}?subscription={object_id}")

    @action(description=CANCELLING, permissions=["change"], icon="cancel", variant=ActionVariant.DANGER)
    def cancel(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Ask, then end all that this one has unfinished."""
        subscription = get_object_or_404(self.only(object_id))
        if request.method == "POST":
            note = _cancel(subscription)
            self.log_change(request, subscription, note)
            self.message_user(request, note, messages.SUCCESS)
            return HttpResponseRedirect(self.page_of(subscription.pk))
        context: dict[str, Any] = {
            **self.admin_site.each_context(request),
            "title": _question([subscription]),
            "chosen": [subscription],
            "back": self.page_of(subscription.pk),
            "opts": self.opts,
        }
        return TemplateResponse(request, "subscriptions/confirm.html", context)

    @admin.action(description=CANCELLING, permissions=["change"])
    def cancel_chosen(self, request: HttpRequest, chosen: QuerySet[Subscription]) -> HttpResponse | None:
        """Ask, then end all that these have unfinished."""
        return self.each_confirmed(request, chosen, _question(chosen), _cancel)


def _question(chosen: "list[Subscription] | QuerySet[Subscription]") -> str:
    number = unfinished_of([one.pk for one in chosen])
    shown = f"{number} or more" if number == MAX_COUNTED else str(number)
    return f"Cancel all unfinished deliveries, {shown} now? They are never sent again; this cannot be undone."


def _cancel(subscription: Subscription) -> str:
    ended, in_flight = cancel_deliveries_of(subscription.pk, reason="cancelled in the admin")
    more = f"; {in_flight} under way end so unless their answer ends them otherwise" if in_flight else ""
    return f"Cancelled {ended} {'delivery' if ended == 1 else 'deliveries'}{more}."
