"""Messages in the admin: what was published, who received it and why, and resubmission if none did."""

from functools import partial
from typing import Any, ClassVar, Final

from django.contrib import admin, messages
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect, QueryDict
from django.urls import URLPattern, path, reverse
from django.utils import timezone
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

from broker_project.core.admin.lists import Candidates, OfContents, several_filter, text_filter
from broker_project.core.admin.model_admin import (
    AutocompleteSelectFilter,
    action,
    after_dialog,
    column,
    dialog,
    state_column,
)
from broker_project.core.admin.theme import link, table
from broker_project.core.api.fields import MAX_ID
from broker_project.core.api.pagination import ids_along
from delivery.admin.callbacks import callbacks_table
from delivery.admin.dry_run import dry_run_page
from delivery.admin.filter_lab import filter_lab_page, term_cells, verdict_label
from delivery.admin.queue_groups import SHOWN_WITH, deliveries_table, groups_table
from delivery.admin.read_only import (
    CONTENT_FILTERS,
    MAX_SHOWN,
    ReadOnlyAdmin,
    id_in,
    link_to,
    link_to_list,
    payload_of,
    published_by,
    subscription_link,
)
from delivery.admin.search import of_contents, with_key
from delivery.models import Delivery, Message, MessageOutcome
from delivery.publish.errors import Refusal, TooManyDeliveries
from delivery.publish.publish import publish_terms
from delivery.replay.resubmit import NotResubmittable, republish, was_not_received
from delivery.status.explain_message import explain_message
from delivery.status.queue_status import first_of
from delivery.status.timeline import Moment
from delivery.statuses import MESSAGE_ID_PREFIX, DeliveryStatus

RESUBMITTING: Final = (
    "A copy is published as a new message, for the subscriptions that match now. This one stays as it is."
)
OUTCOME_COLOURS: Final = {
    "ROUTED": "success",
    "UNROUTED": "warning",
    "DISCARDED": "warning",
    "DEAD_LETTERED": "danger",
}


def _deliveries_of(message: Message) -> list[Delivery]:
    return first_of(message.delivery_set.select_related(*SHOWN_WITH), MAX_SHOWN)


def _delivery_table(message: Message) -> SafeString:
    """Return a message's deliveries: one for each subscription it qualified for."""
    number = message.deliveries_count
    more = [[link_to_list("delivery_delivery", f"all {number}", message__id=message.pk)]] if number > MAX_SHOWN else []
    return deliveries_table(_deliveries_of(message), more)


def _explanation_table(message: Message) -> SafeString:
    """Return every subscription that the event type reaches, judged by the present configuration."""
    explanations = explain_message(message, MAX_SHOWN)
    rows: list[list[object]] = [
        [
            subscription_link(one.subscription),
            verdict_label(one.verdict),
            one.verdict.why,
            format_html_join("", '<div class="py-1">{1} {0} — {2}</div>', term_cells(one.verdict.filter)),
        ]
        for one in explanations.found
    ]
    if explanations.is_cut:
        dry_run = f"{reverse('admin:delivery_message_dry_run')}?event_type={message.event_type_id}"
        rows.append([format_html("and more than these {}: {}", MAX_SHOWN, link(dry_run, "a dry run shows all"))])
    return table(["subscription", "by today's configuration", "because", "term by term"], rows)


def _story_of(message: Message) -> list[Moment]:
    """Return who published a message and when, then how its deliveries ended, and last those that have not."""
    if message.answers:
        origin = format_html("The reply to a callback of message {}.", link_to("delivery_message", message.answers))
    else:
        origin = format_html("Published {}: {}.", published_by(message), MessageOutcome(message.outcome).label)
    story = [Moment(message.published_at, origin)]
    for one in sorted(
        _deliveries_of(message), key=lambda one: (one.finished_at is None, one.finished_at or one.created_at)
    ):
        status = DeliveryStatus(one.status_at(timezone.now())).label
        to = format_html(" to {}", subscription_link(one.subscription)) if one.subscription else ""
        reason = f" ({one.reason})" if one.reason else ""
        text = format_html("{}{}: {}{}.", link_to("delivery_delivery", one.pk), to, status, reason)
        story.append(Moment(one.finished_at, text, next_try_at=one.next_try_at))
    return story


SubscriberFilter: Final = text_filter("subscriber that gets it", "subscriber")
StatusFilter: Final = several_filter(
    "status of a delivery", "status", dict(DeliveryStatus.choices), lambda rows, _: rows
)


@admin.register(Message)
class MessageAdmin(ReadOnlyAdmin[Message]):
    """Published messages."""

    when_empty = "No message has been published yet. To publish one, send an event to the API with a publisher's key."
    list_display = ("id", "event_type", "outcome_label", "deliveries_count", "size", "publisher", "published_at")
    list_filter = (
        several_filter(
            "outcome",
            "outcome__exact",
            dict(MessageOutcome.choices),
            lambda rows, chosen: rows.filter(outcome__in=chosen),
        ),
        *(("event_type", AutocompleteSelectFilter), ("publisher", AutocompleteSelectFilter)),
        *(SubscriberFilter, StatusFilter, *CONTENT_FILTERS),
    )
    time_column = "published_at"
    fields = (
        *("id", "event_type", "publisher", "published_at", "outcome_label", "filter_string", "content_type", "size"),
        *("destination", "expires_at", "not_before", "copy_link", "answers_link"),
        *("header_table", "payload", "delivery_table", "group_table", "callback_table", "explanation_table"),
    )
    change_form_outer_before_template = "delivery/delivery_story.html"
    contents = ("filter_string", "header_table", "payload", "explanation_table")
    actions_detail: ClassVar[tuple[str, ...]] = ("try_filters", "resubmit")
    not_read_for_actions = ("body",)

    answers_link = column("reply to", lambda message: link_to("delivery_message", message.answers))
    copy_link = column("copy of", lambda message: link_to("delivery_message", message.copy_of))
    outcome_label = state_column(
        "outcome", lambda message: MessageOutcome(message.outcome), OUTCOME_COLOURS, ordering="outcome"
    )
    header_table = column("headers", lambda message: table(["name", "value"], message.headers))
    payload = column("payload", payload_of)
    delivery_table = column("deliveries", _delivery_table)
    group_table = column("groups", lambda message: groups_table(_deliveries_of(message)))
    callback_table = column("callbacks", callbacks_table)
    explanation_table = column("who receives it, and why", _explanation_table)

    def get_queryset(self, request: HttpRequest) -> QuerySet[Message]:
        """Return the messages; a list has replies to callbacks only if it is searched for their id.

        Joined, an event type or a publisher that is gone is None; read one by one, it would be an error.
        """
        rows: QuerySet[Message] = super().get_queryset(request).select_related("event_type", "publisher")
        return rows.filter(answers=None) if request.path == self.list_url() and not request.GET.get("q") else rows

    def candidates(self, asked: QueryDict) -> Candidates | None:
        """Return what finds the messages of a key, an event type, a publisher or an outcome along an index."""
        if (keyed := with_key(asked)) is not None:
            return ids_along(Message.objects.filter(pk__in=keyed), 0, MAX_ID)
        for column_name in ("event_type", "publisher"):
            if one := id_in(asked, f"{column_name}__id__exact"):
                return ids_along(Message.objects.filter(**{column_name: one}), 0, MAX_ID)
        outcomes = asked.getlist("outcome__exact")
        if outcomes and MessageOutcome.ROUTED not in outcomes:  # the others are in an index of their own
            return ids_along(Message.objects.filter(outcome__in=outcomes), 0, MAX_ID)
        return None

    def of_contents(self, asked: QueryDict) -> OfContents | None:
        """Return how the filters by contents and by deliveries are applied."""
        of_delivery = {"subscriber": asked.get("subscriber") or None, "statuses": asked.getlist("status")}
        return of_contents(asked, lambda ids: {one: one for one in ids}, **of_delivery)

    def get_urls(self) -> list[URLPattern]:
        """Return the addresses of the filter lab and the dry run too."""
        view = self.admin_site.admin_view
        return [
            path("filter-lab/", view(partial(filter_lab_page, self)), name="delivery_message_filter_lab"),
            path("dry-run/", view(partial(dry_run_page, self)), name="delivery_message_dry_run"),
            *super().get_urls(),
        ]

    def render_change_form(
        self, request: HttpRequest, context: dict[str, Any], *args: Any, obj: Message, **options: Any
    ) -> HttpResponse:
        """Show its story above its fields."""
        context |= {"moments": _story_of(obj)}
        return super().render_change_form(request, context, *args, obj=obj, **options)  # type: ignore[no-any-return]

    @action(description="Try filters on it", permissions=["view"], icon="science")
    def try_filters(self, request: HttpRequest, object_id: str) -> HttpResponse:  # noqa: ARG002 - unfold's signature
        """Lead to the filter lab with this message."""
        return HttpResponseRedirect(f"{reverse('admin:delivery_message_filter_lab')}?message={object_id}")

    @action(
        description="Resubmit",
        permissions=["replay"],
        icon="replay",
        dialog=dialog("Publish this message again?", RESUBMITTING, "Publish again"),
        refusals=(NotResubmittable, Refusal, TooManyDeliveries),
        offered=was_not_received,
    )
    def resubmit(self, request: HttpRequest, _form: object, object_id: str) -> HttpResponse:
        """Publish it again, and lead to the copy."""
        accepted = republish(int(object_id), publish_terms())
        self.log_change(
            request, Message.objects.only("pk").get(pk=object_id), f"Resubmitted as {MESSAGE_ID_PREFIX}{accepted.id}."
        )
        self.message_user(request, f"This message is a copy of {MESSAGE_ID_PREFIX}{object_id}.", messages.SUCCESS)
        return after_dialog(request, self.change_url(accepted.id))
