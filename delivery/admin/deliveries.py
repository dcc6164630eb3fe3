"""Deliveries in the admin: all of them, dead letters, and the page of one, where it is released or resubmitted."""

from typing import Any, ClassVar, Final
from urllib.parse import urlencode

from django import forms
from django.conf import settings
from django.contrib import admin, messages
from django.contrib.admin.models import LogEntry
from django.contrib.admin.options import get_content_type_for_model
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect, QueryDict
from django.shortcuts import get_object_or_404
from django.urls import reverse
from django.utils import timezone
from django.utils.html import format_html
from django.utils.text import capfirst

from broker_project.core.admin.lists import Candidates, several_filter, with_fixed_times
from broker_project.core.admin.model_admin import (
    AutocompleteSelectFilter,
    action,
    after_dialog,
    column,
    dialog,
    permission,
    state_column,
)
from broker_project.core.admin.theme import CODE, ActionVariant, UnfoldAdminTextareaWidget, relative
from broker_project.core.api.fields import id_of
from delivery.admin.bulk import CANCEL, IN_A_PAUSE, RELEASE, RESUBMIT, TRY_NOW, Act, all_page, chosen_action
from delivery.admin.queue_groups import group_deliveries_table
from delivery.admin.read_only import (
    CONTENT_FILTERS,
    MAX_SHOWN,
    STATUS_COLOURS,
    counted,
    link_to,
    links_to,
    may_see_contents,
    plural,
    published_by,
    yes_or_no,
)
from delivery.admin.replayable import (
    OF_EVENT_TYPE,
    OF_MESSAGE_AND_SUBSCRIPTION,
    ReplayableAdmin,
    statuses_in,
    subscriptions_in,
)
from delivery.api.searches import found_by
from delivery.models import OPEN_SHELF, DeadLetter, Delivery, Message, MessageOutcome
from delivery.publish.errors import Refusal
from delivery.publish.publish import publish_terms
from delivery.replay.eligibility import RESUBMITTABLE, RESUBMITTABLE_REPLIES
from delivery.replay.resubmit import Edit, NoLongerKept, NotResubmittable, resubmit
from delivery.status.delivery_search import REASONS, counts_of, finder_of, in_group, in_status
from delivery.status.sent_requests import MAX_SHOWN_BYTES
from delivery.status.timeline import Moment, timeline_of
from delivery.statuses import DELIVERY_ID_PREFIX, GROUP_ID_PREFIX, DeliveryStatus

FIRST_FIELDS: Final = ("status_label", "message_link", "subscription", "group_table")
BODY_HELP: Final = (
    "If you change it, the delivery is checked like a new message and sends a message of its own; otherwise the same"
    " message is sent again."
)
UNKNOWN_DESTINATION: Final = str(MessageOutcome.DEAD_LETTERED)
OF_MESSAGES: Final = {
    *("from", "to", OF_EVENT_TYPE, "message__publisher__id__exact"),
    *(one.parameter_name for one in CONTENT_FILTERS),
}
"""What narrows lists of deliveries and of messages."""
MESSAGES_WITHOUT_DELIVERY: Final = f"{MessageOutcome.DEAD_LETTERED.label}: messages without a delivery"


StatusFilter: Final = several_filter(
    "status", "status__exact", dict(DeliveryStatus.choices), lambda rows, chosen: in_status(rows, *chosen)
)


class BodyForm(forms.Form):
    """The body that is sent."""

    body = forms.CharField(
        required=False, strip=False, widget=UnfoldAdminTextareaWidget({**CODE, "rows": 16}), help_text=BODY_HELP
    )


@admin.register(Delivery)
class DeliveryAdmin(ReplayableAdmin[Delivery]):
    """One message for one subscription."""

    when_empty = "No delivery yet. A message that is published has one for each subscription that wants it."
    list_display = (
        *("id", "status_label", "subscriber", "event_type", "attempts", "reason", "finished_or_due", "created_at"),
    )
    list_filter = (
        *(StatusFilter, *OF_MESSAGE_AND_SUBSCRIPTION, ("line", AutocompleteSelectFilter)),
        *CONTENT_FILTERS,
    )
    fields = (
        *("id", "status_label", "message_link", "subscription", "line", "sequence", "attempts", "next_try", "reason"),
        *("fetches", "in_flight_until", "not_before", "expires_at", "repeats", "resubmitted_as", "replay_link"),
        *("is_uncertain", "is_cancel_requested", "size"),
        *("created_at", "finished_at", "group_table"),
    )
    change_form_outer_before_template = "delivery/delivery_story.html"
    search_help_text = f"An id; or a group's id with {GROUP_ID_PREFIX}"
    actions = ("resubmit_chosen", "release_chosen", "try_chosen_now", "cancel_chosen")
    actions_list: ClassVar[tuple[str, ...]] = (*ReplayableAdmin.actions_list, "act_on_all")
    actions_detail: ClassVar[tuple[str, ...]] = ("try_now", "release", "resubmit")

    status_label = state_column(
        "status",
        lambda delivery: DeliveryStatus(delivery.status_at(timezone.now())),
        STATUS_COLOURS,
        ordering="status",
    )
    message_link = column("message", lambda delivery: link_to("delivery_message", delivery.message_id))
    next_try = column("next try", lambda delivery: relative(delivery.next_try_at))
    finished_or_due = column("finished or due", lambda delivery: relative(delivery.finished_at or delivery.next_try_at))
    in_flight_until = column("in flight until", lambda delivery: relative(delivery.fetched_until))
    repeats = column("resubmission of", lambda delivery: link_to("delivery_delivery", delivery.resubmit_of))
    resubmitted_as = column(
        "resubmitted as",
        lambda delivery: links_to(
            "delivery_delivery",
            Delivery.objects.filter(resubmit_of=delivery.pk).order_by("pk").values_list("pk", flat=True)[:MAX_SHOWN],
        ),
    )
    replay_link = column(
        "created by", lambda delivery: link_to("delivery_replay", delivery.replay_id, f"replay {delivery.replay_id}")
    )
    is_uncertain = column("uncertain", lambda delivery: yes_or_no(delivery.uncertain))
    is_cancel_requested = column("cancel requested", lambda delivery: yes_or_no(delivery.cancel_requested))
    group_table = column("group", lambda delivery: group_deliveries_table(delivery.message_id, delivery.group_id))

    has_release_permission = permission("delivery.change_delivery")

    resubmit_chosen, release_chosen = chosen_action(RESUBMIT), chosen_action(RELEASE)
    try_chosen_now, cancel_chosen = chosen_action(TRY_NOW), chosen_action(CANCEL)

    def get_fieldsets(self, request: HttpRequest, obj: Delivery | None = None) -> list[Any]:
        """Return what says most, and the other fields folded up."""
        names = self.get_fields(request, obj)
        rest = [name for name in names if name not in FIRST_FIELDS]
        return [(None, {"fields": FIRST_FIELDS}), ("All fields", {"fields": rest, "classes": ["collapse"]})]

    def render_change_form(
        self, request: HttpRequest, context: dict[str, Any], *args: Any, obj: Delivery, **options: Any
    ) -> HttpResponse:
        """Show its story above its fields."""
        done = LogEntry.objects.filter(
            content_type=get_content_type_for_model(obj), object_id=str(obj.pk)
        ).select_related("user")
        story = timeline_of(obj, timezone.now())
        by_hand = [Moment(one.action_time, f"{one.user}: {one.get_change_message()}") for one in done[:MAX_SHOWN]]
        moments = story.moments(obj, [Moment(obj.created_at, _origin_of(obj, story.message)), *by_hand])
        context |= {"moments": [*map(_linked, moments)], "shows_contents": may_see_contents(request)}
        return super().render_change_form(request, context, *args, obj=obj, **options)  # type: ignore[no-any-return]

    def search(self, rows: QuerySet[Delivery], term: str) -> QuerySet[Delivery]:
        """Return the delivery of this id, or the deliveries of this group."""
        group_id = id_of(term, GROUP_ID_PREFIX) if term.startswith(GROUP_ID_PREFIX) else None
        return in_group(rows, group_id) if group_id else super().search(rows, term)

    def lookup_allowed(self, lookup: str, value: str, request: HttpRequest) -> bool:
        """Allow the links of message pages."""
        return lookup == "message__id" or super().lookup_allowed(lookup, value, request)

    def _run(self, act: Act, request: HttpRequest, object_id: str) -> None:
        number = act.run(request, [int(object_id)])
        self.message_user(request, f"{act.done}: {plural(number)}.", messages.SUCCESS if number else messages.WARNING)

    @action(
        description="Release",
        permissions=["release"],
        icon="play_arrow",
        variant=ActionVariant.SUCCESS,
        dialog=dialog("Release this delivery?", RELEASE.note, "Release delivery"),
        offered=lambda delivery: delivery.status == DeliveryStatus.HELD,
    )
    def release(self, request: HttpRequest, _form: object, object_id: str) -> HttpResponse:
        """Release one."""
        self._run(RELEASE, request, object_id)
        return after_dialog(request, self.change_url(object_id))

    @action(
        description="Try now",
        permissions=["release"],
        icon="bolt",
        variant=ActionVariant.PRIMARY,
        dialog=dialog("Try this delivery now?", TRY_NOW.note, "Try now"),
        offered=lambda delivery: Delivery.objects.open().filter(IN_A_PAUSE, pk=delivery.pk).exists(),
    )
    def try_now(self, request: HttpRequest, _form: object, object_id: str) -> HttpResponse:
        """Try one now."""
        self._run(TRY_NOW, request, object_id)
        return after_dialog(request, self.change_url(object_id))

    @action(description="Act on all", permissions=["view"], icon="checklist")
    def act_on_all(self, request: HttpRequest) -> HttpResponse:
        """Count what the filters find, and do something to all of it, however long that takes."""
        fixed = with_fixed_times(request.GET)
        if fixed != request.GET:
            return HttpResponseRedirect(f"{request.path}?{fixed.urlencode()}")
        return all_page(self, request)

    @action(
        description="Resubmit",
        permissions=["replay", "view"],
        icon="replay",
        offered=lambda one: one.status in (RESUBMITTABLE if one.subscription_id else RESUBMITTABLE_REPLIES),
    )
    def resubmit(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Show the body, and send it again once that is confirmed."""
        old = get_object_or_404(Delivery, pk=object_id)
        text = _editable_text(old) if may_see_contents(request) and old.subscription_id else None
        form = BodyForm(request.POST or None, initial={"body": text})
        if request.method == "POST" and form.is_valid():
            body = _with_plain_line_ends(form.cleaned_data["body"])
            edit = None if text is None or body == _with_plain_line_ends(text) else Edit(body.encode())
            try:
                new_id = resubmit(old.pk, publish_terms(), edit=edit, max_bytes=settings.MAX_BODY_BYTES)
            except (NotResubmittable, NoLongerKept, Refusal) as refused:
                form.add_error(None, str(refused))
            else:
                self.log_change(
                    request,
                    old,
                    f"Resubmitted as {DELIVERY_ID_PREFIX}{new_id}{' with an edited body' if edit else ''}.",
                )
                self.message_user(request, f"This is a resubmission of {old}.", messages.SUCCESS)
                return HttpResponseRedirect(self.change_url(new_id))
        context = {"form": form, "delivery": old, "is_editable": text is not None}
        return self.page(request, "delivery/resubmission.html", f"Resubmit {old}", **context)


def _linked(moment: Moment) -> Moment:
    """Return a line of the story with a link to what it is about."""
    if (about := moment.about) is None:
        return moment
    place, words = about._meta, f"{about._meta.verbose_name} {about}"  # noqa: SLF001 - documented by Django
    linked = link_to(f"{place.app_label}_{place.model_name}", about.pk, capfirst(words))
    return moment._replace(text=format_html("{} {}.", moment.text, linked))


def _origin_of(delivery: Delivery, message: Message | None) -> str:
    """Return who or what a delivery comes from, as a sentence with links."""
    repeated = link_to("delivery_delivery", delivery.resubmit_of)
    if delivery.replay_id:
        also = format_html(" It repeats delivery {}.", repeated) if delivery.resubmit_of else ""
        return format_html("Created by replay {}.{}", link_to("delivery_replay", delivery.replay_id), also)
    if delivery.resubmit_of:
        return format_html("Resubmitted by hand: it repeats delivery {}.", repeated)
    if message is None:
        return "Published. The message is not kept any more."
    linked = link_to("delivery_message", message.pk)
    if delivery.subscription_id is None:
        return format_html("The reply to a callback: message {}.", linked)
    return format_html("Published {}: message {}.", published_by(message), linked)


def _editable_text(delivery: Delivery) -> str | None:
    """Return the body as text for a browser; None if it is gone, too long, or not UTF-8, or would come back changed.

    From a text area browsers send neither its first line end nor NUL.
    """
    message = Message.objects.only("body", "size").filter(pk=delivery.message_id or 0).first()
    if message is None or message.size > MAX_SHOWN_BYTES:
        return None
    try:
        text = bytes(message.body).decode()
    except UnicodeDecodeError:
        return None
    return None if text.startswith(("\r", "\n")) or "\0" in text else text


def _with_plain_line_ends(text: str) -> str:
    """Return a text with LF line ends; browsers send CRLF."""
    return text.replace("\r\n", "\n").replace("\r", "\n")


REASON_WORDS: Final = {reason: str(DeliveryStatus(reason).label) for reason in REASONS}


class ReasonFilter(
    several_filter("status", "reason", REASON_WORDS, lambda rows, reasons: rows.filter(status__in=reasons))  # type: ignore[misc]
):
    """Dead letters by how they ended, with how many there are of each."""

    def lookups(self, request: HttpRequest, model_admin: object) -> list[tuple[str, str]]:  # noqa: ARG002
        """Return the choices, with how many there are of each."""
        counts = counts_of(None)
        texts = {**REASON_WORDS, UNKNOWN_DESTINATION: MESSAGES_WITHOUT_DELIVERY}
        return [(reason, f"{text} ({counted(counts[reason])})") for reason, text in texts.items()]


@admin.register(DeadLetter)
class DeadLetterAdmin(ReplayableAdmin[DeadLetter]):
    """Deliveries that ended without success; each links to its page."""

    when_empty = "No dead letters: no delivery has ended without success. There is nothing to do."
    list_display = (*("delivery", "status_label", "subscriber", "event_type", "attempts", "reason", "finished_at"),)
    list_display_links = None
    list_filter = (ReasonFilter, *OF_MESSAGE_AND_SUBSCRIPTION, *CONTENT_FILTERS)

    delivery = column("delivery", lambda delivery: link_to("delivery_delivery", delivery.pk))
    status_label = state_column("status", lambda delivery: DeliveryStatus(delivery.status), STATUS_COLOURS)

    def candidates(self, asked: QueryDict) -> Candidates | None:
        """Return what finds them along an index: by their messages' key, or status by status."""
        if asked.get("idempotency_key"):
            return super().candidates(asked)
        find = finder_of(subscriptions_in(asked), statuses_in(asked) or REASONS)
        assert find  # noqa: S101 - an index has how they end
        return found_by(find)

    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> HttpResponse:
        """Show the list; messages without a delivery are in the list of messages."""
        asked = request.GET.copy()
        reasons = asked.getlist(ReasonFilter.parameter_name)
        if UNKNOWN_DESTINATION in reasons:
            shared = [(name, value) for name, values in asked.lists() if name in OF_MESSAGES for value in values]
            kept = [(name.removeprefix("message__"), value) for name, value in shared]
            query = urlencode([("outcome__exact", UNKNOWN_DESTINATION), *kept])
            there = f"{reverse('admin:delivery_message_changelist')}?{query}"
            if reasons == [UNKNOWN_DESTINATION]:
                return HttpResponseRedirect(there)
            asked.setlist(ReasonFilter.parameter_name, [one for one in reasons if one != UNKNOWN_DESTINATION])
            told = format_html('<a href="{}">{}</a> are in a list of their own.', there, MESSAGES_WITHOUT_DELIVERY)
            self.message_user(request, told, messages.INFO)
            return HttpResponseRedirect(f"{self.list_url()}?{asked.urlencode()}")
        return super().changelist_view(request, extra_context)

    def get_queryset(self, request: HttpRequest) -> QuerySet[DeadLetter]:
        """Return the deliveries that ended without success."""
        rows: QuerySet[DeadLetter] = super().get_queryset(request)
        return rows.filter(closed_on__lt=OPEN_SHELF, status__in=REASONS)
