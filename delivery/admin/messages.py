"""Messages in the admin: what was published, and to whom it went."""

from typing import Any, ClassVar, Final

from django.conf import settings
from django.contrib import admin, messages
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.urls import reverse
from django.utils import timezone
from django.utils.safestring import SafeString

from broker_project.core.admin.theme import AutocompleteSelectFilter, action, after_dialog, dialog, display, table
from delivery.admin.callbacks import callbacks_table
from delivery.admin.contents import HIDDEN, payload_of
from delivery.admin.filter_lab import FilterLabAdmin, terms_list, verdict_label
from delivery.admin.queue_groups import SHOWN_WITH, group_link, groups_table
from delivery.admin.read_only import MAX_SHOWN, link_to, link_to_list, status_badge, subscription_link
from delivery.callbacks.address import callback_terms
from delivery.models import Delivery, Message
from delivery.publish.errors import Refusal
from delivery.replay.resubmit import NotResubmittable, nobody_got, republish
from delivery.status.explain_message import MAX_EXPLAINED, explain_message

AGAIN: Final = "As a message of its own, a copy of this one, to whoever qualifies now; this one stays as it is."

OUTCOME_COLOURS = {"ROUTED": "success", "UNROUTED": "warning", "DISCARDED": "warning", "DEAD_LETTERED": "danger"}


class RepublishingAdmin(FilterLabAdmin):
    """Messages, of which those that nobody got can be published again."""

    actions_detail: ClassVar[tuple[str, ...]] = (*FilterLabAdmin.actions_detail, "resubmit")

    def has_resubmit_permission(self, request: HttpRequest, object_id: object = None) -> bool:  # noqa: ARG002 - unfold's
        """Tell whether the user may send things again."""
        return request.user.has_perm("delivery.replay")

    def get_actions_detail(self, request: HttpRequest, object_id: int) -> list[Any]:
        """Offer it only of what went to nobody."""
        offered: list[Any] = super().get_actions_detail(request, object_id)
        message = Message.objects.defer("body").filter(pk=object_id).first()
        return offered if message and nobody_got(message) else [one for one in offered if one.path != "resubmit"]

    @action(
        description="Resubmit",
        permissions=["resubmit"],
        icon="replay",
        dialog=dialog("Publish it again?", AGAIN, "Publish"),
    )
    def resubmit(self, request: HttpRequest, _form: object, object_id: str) -> HttpResponse:
        """Publish it again, and lead to the copy."""
        try:
            accepted = republish(
                int(object_id),
                key_hours=settings.IDEMPOTENCY_KEY_HOURS,
                senders=settings.QUEUE_SENDERS,
                callbacks=callback_terms(),
            )
        except (NotResubmittable, Refusal) as refused:
            self.message_user(request, str(refused), messages.WARNING)
            return after_dialog(request, reverse("admin:delivery_message_change", args=[object_id]))
        self.log_change(request, Message.objects.only("pk").get(pk=object_id), f"Resubmitted as {accepted.id}.")
        self.message_user(request, f"This message is a copy of {object_id}.", messages.SUCCESS)
        return after_dialog(request, reverse("admin:delivery_message_change", args=[accepted.id]))


@admin.register(Message)
class MessageAdmin(RepublishingAdmin):
    """What was published."""

    list_display = ("id", "event_type", "outcome_label", "deliveries_count", "size", "publisher", "published_at")
    list_filter = ("outcome", ("event_type", AutocompleteSelectFilter), ("publisher", AutocompleteSelectFilter))
    list_select_related = ("event_type", "publisher")
    fields = (
        *("id", "event_type", "publisher", "published_at", "outcome_label", "filter_string", "content_type", "size"),
        *("destination", "expires_at", "not_before", "copy_link"),
        *("header_table", "payload", "delivery_table", "group_table", "callback_table", "explanation_table"),
    )
    readonly_fields = (*fields, "answers_link", HIDDEN)
    contents = ("filter_string", "header_table", "payload", "explanation_table")

    def get_queryset(self, request: HttpRequest) -> QuerySet[Message]:
        """Return the messages; a list has what was published, and a reply to a callback only if its id is asked for."""
        rows: QuerySet[Message] = super().get_queryset(request)
        is_list = request.path == reverse("admin:delivery_message_changelist")
        return rows.filter(answers=None) if is_list and not request.GET.get("q") else rows

    def get_fields(self, request: HttpRequest, obj: Message | None = None) -> tuple[str, ...]:
        """Return what is shown; a reply was published by nobody, so that nothing says who would get it."""
        fields = super().get_fields(request, obj)
        if obj is None or obj.answers is None:
            return fields
        shown = (name for name in fields if name not in {"group_table", "callback_table", "explanation_table"})
        return ("answers_link", *shown)

    @display(description="reply to")
    def answers_link(self, message: Message) -> SafeString | str:
        """Return a link to the message that a reply answers."""
        return link_to("delivery_message", message.answers, message.answers)

    @display(description="copy of")
    def copy_link(self, message: Message) -> SafeString | str:
        """Return a link to the message that somebody resubmitted as this one."""
        return link_to("delivery_message", message.copy_of, message.copy_of)

    @display(description="outcome", ordering="outcome", label=OUTCOME_COLOURS)
    def outcome_label(self, message: Message) -> str:
        """Return the outcome, coloured."""
        return message.outcome

    @display(description="headers")
    def header_table(self, message: Message) -> SafeString:
        """Return the publisher's headers in their order."""
        return table(["name", "value"], message.headers)

    @display(description="payload")
    def payload(self, message: Message) -> SafeString:
        """Return the body as text, cut where nobody reads on."""
        return payload_of(message)

    @display(description="deliveries")
    def delivery_table(self, message: Message) -> SafeString:
        """Return what it became: one delivery for each qualifying subscription."""
        rows = [
            [
                link_to("delivery_delivery", one.pk, one.pk),
                subscription_link(one.subscription),
                group_link(one.group_id),
                status_badge(one.status_at(timezone.now())),
                one.reason or "-",
                one.sequence or "-",
                one.attempts,
                one.finished_at or "-",
            ]
            for one in _deliveries_of(message)
        ]
        if message.deliveries_count > MAX_SHOWN:
            rows.append([link_to_list("delivery_delivery", f"all {message.deliveries_count}", message__id=message.pk)])
        return table(["delivery", "subscription", "group", "status", "reason", "number", "attempts", "finished"], rows)

    @display(description="groups")
    def group_table(self, message: Message) -> SafeString | str:
        """Return the groups of a QUEUE message, and which endpoint took it in each."""
        return groups_table(_deliveries_of(message))

    @display(description="callbacks")
    def callback_table(self, message: Message) -> SafeString | str:
        """Return where its result may be posted, and what became of that."""
        return callbacks_table(message)

    @display(description="who gets it, and why")
    def explanation_table(self, message: Message) -> SafeString:
        """Return every subscription that its event type reaches, by the configuration that is now in force."""
        explanations = explain_message(message)
        rows: list[list[object]] = [
            [
                subscription_link(one.subscription),
                verdict_label(one.verdict),
                one.verdict.why,
                terms_list(one.verdict.filter),
            ]
            for one in explanations.found
        ]
        if explanations.is_cut:
            rows.append([f"more than these {MAX_EXPLAINED}"])
        return table(["subscription", "by today's configuration", "because", "term by term"], rows)


def _deliveries_of(message: Message) -> "QuerySet[Delivery]":
    return Delivery.objects.filter(message=message).select_related(*SHOWN_WITH).oldest_first()[:MAX_SHOWN]
