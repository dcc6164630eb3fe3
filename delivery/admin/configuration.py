"""What delivering adds to the admin of what is configured: links to what came of it, and cancelling.

Registered from here, since `subscriptions` knows nothing of deliveries.
"""

from typing import Any, ClassVar

from django.contrib import admin, messages
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import get_object_or_404
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils.safestring import SafeString

from broker_project.core.admin.read_only import link_to, link_to_list
from broker_project.core.admin.theme import ActionVariant, action, display
from delivery.admin.line_work import main_line_of
from delivery.admin.mailbox_work import mailbox_link
from delivery.admin.rehearsing import RehearsingAdmin
from delivery.admin.replayable import replay_address
from delivery.cancelling import cancel_deliveries_of
from delivery.status.line_status import COUNTED_AT_MOST
from delivery.status.standing import unfinished_of
from subscriptions.admin.subscribers import SubscriberAdmin
from subscriptions.models import EventKind, Subscriber, Subscription

CANCELLING = "Cancel unfinished deliveries"
MORE = ("send_test_event", "backfill", "replay", "test_filter", "rotate_secret", "end_overlap", "cancel")
"""What is done more rarely."""

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
    shown = f"{number} or more" if number == COUNTED_AT_MOST else str(number)
    return f"Cancel all unfinished deliveries, {shown} now? They are never sent again; this cannot be undone."


def _cancel(subscription: Subscription) -> str:
    ended, under_way = cancel_deliveries_of(subscription.pk, reason="cancelled in the admin")
    more = f"; {under_way} under way end so unless their answer ends them otherwise" if under_way else ""
    return f"Cancelled {ended} {'delivery' if ended == 1 else 'deliveries'}{more}."
