"""Deliveries in the admin: one message on its way to one subscription."""

from typing import Any, ClassVar, Final

from django import forms
from django.conf import settings
from django.contrib import admin, messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.admin.views.main import ChangeList
from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import get_object_or_404
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse
from django.utils import timezone
from django.utils.html import format_html_join
from django.utils.safestring import SafeString

from broker_project.core.admin.theme import (
    ActionVariant,
    AutocompleteSelectFilter,
    UnfoldAdminTextareaWidget,
    action,
    after_dialog,
    dialog,
    display,
    for_code,
    page_of,
)
from delivery.admin.attempts import addressee_of, attempts_table, events_of, keep_callbacks
from delivery.admin.contents import SHOWN_BYTES, may_see_contents
from delivery.admin.queue_groups import mates_table
from delivery.admin.read_only import MAX_SHOWN, STATUS_COLOURS, ReadOnlyAdmin, instant, is_id, link_to, yes_or_no
from delivery.admin.replayable import ReplayableAdmin, narrowed, searched
from delivery.models import Delivery, Message, standing
from delivery.operations import release
from delivery.publish.errors import Refusal
from delivery.replay.eligibility import RESUBMITTABLE
from delivery.replay.resubmit import Edit, NoLongerKept, NotResubmittable, resubmit
from delivery.status.dead_letters import in_group
from delivery.statuses import DeliveryStatus
from delivery.webhook.parts import GROUP_ID_PREFIX, WEBHOOK_ID_PREFIX

RELEASING: Final = "It is sent in its place among what waits, whatever its filter says; a script runs again."
RELEASED_AT_ONCE: Final = 500
"""A form has at most 1,000 fields."""

REFUSED: Final = (NotResubmittable, NoLongerKept, Refusal)
BODY_HELP: Final = "As it is: sent again. Changed: judged as if it were published, and stored as a message of its own."


class ReleasingAdmin(ReadOnlyAdmin[Delivery]):
    """Deliveries, of which those that are HELD can be released."""

    actions = ("release_chosen",)
    actions_detail: ClassVar[tuple[str, ...]] = ("release",)

    def has_release_permission(self, request: HttpRequest, object_id: object = None) -> bool:  # noqa: ARG002 - unfold's
        """Tell whether the user may change deliveries, which is only ever to release them."""
        return request.user.has_perm("delivery.change_delivery")

    def get_actions_detail(self, request: HttpRequest, object_id: int) -> list[Any]:
        """Offer releasing only of what is HELD."""
        offered: list[Any] = super().get_actions_detail(request, object_id)
        if Delivery.objects.filter(pk=object_id, status=DeliveryStatus.HELD).exists():
            return offered
        return [one for one in offered if one.path != "release"]

    @action(
        description="Release",
        permissions=["release"],
        icon="play_arrow",
        variant=ActionVariant.SUCCESS,
        dialog=dialog("Release?", RELEASING, "Release"),
    )
    def release(self, request: HttpRequest, _form: object, object_id: str) -> HttpResponse:
        """Release one."""
        self._release(request, Delivery.objects.filter(pk=object_id))
        return after_dialog(request, reverse("admin:delivery_delivery_change", args=[object_id]))

    @admin.action(description="Release", permissions=["release"])
    def release_chosen(self, request: HttpRequest, chosen: QuerySet[Delivery]) -> HttpResponse | None:
        """Ask, then release those of the chosen that are HELD."""
        held = chosen.filter(status=DeliveryStatus.HELD).order_by("pk")[:RELEASED_AT_ONCE]
        if "confirmed" in request.POST:
            self._release(request, held)
            return None
        context = {
            **self.admin_site.each_context(request),
            "title": f"{_question(len(held))} {RELEASING}",
            "chosen": held,
            "action": request.POST["action"],
            "checkbox": ACTION_CHECKBOX_NAME,
            "opts": self.opts,
        }
        return TemplateResponse(request, "subscriptions/confirm.html", context)

    def _release(self, request: HttpRequest, chosen: QuerySet[Delivery]) -> None:
        released = release([one.pk for one in chosen])
        for delivery in Delivery.objects.open().filter(pk__in=released):
            self.log_change(request, delivery, "Released.")
        level = messages.SUCCESS if released else messages.WARNING
        self.message_user(request, f"Released {_deliveries(len(released))}.", level)


def _question(number: int) -> str:
    return "Release this HELD delivery?" if number == 1 else f"Release these {number} HELD deliveries?"


def _deliveries(number: int) -> str:
    return "1 delivery" if number == 1 else f"{number} deliveries"


class BodyForm(forms.Form):
    """The body that is sent."""

    body = forms.CharField(required=False, strip=False, widget=UnfoldAdminTextareaWidget({"rows": 16}))

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.fields["body"].help_text = BODY_HELP
        for_code(self.fields["body"].widget)


class ResubmittingAdmin(ReleasingAdmin):
    """Deliveries, of which those that came to nothing can be sent again."""

    actions_detail: ClassVar[tuple[str, ...]] = (*ReleasingAdmin.actions_detail, "resubmit")

    def has_resubmit_permission(self, request: HttpRequest, object_id: object = None) -> bool:  # noqa: ARG002 - unfold's
        """Tell whether the user may send things again."""
        return request.user.has_perm("delivery.replay")

    def get_actions_detail(self, request: HttpRequest, object_id: int) -> list[Any]:
        """Offer it only of what can be."""
        offered: list[Any] = super().get_actions_detail(request, object_id)
        if Delivery.objects.filter(pk=object_id, status__in=RESUBMITTABLE).exists():
            return offered
        return [one for one in offered if one.path != "resubmit"]

    @action(description="Resubmit", permissions=["resubmit"], icon="replay")
    def resubmit(self, request: HttpRequest, object_id: str) -> HttpResponse:  # noqa: ARG002 - unfold's signature
        """Lead to the form."""
        return HttpResponseRedirect(reverse("admin:delivery_delivery_resubmission", args=[object_id]))

    def get_urls(self) -> list[URLPattern]:
        """Return the form's address too."""
        view = self.admin_site.admin_view(self.resubmission)
        return [path("<int:pk>/resubmission/", view, name="delivery_delivery_resubmission"), *super().get_urls()]

    def resubmission(self, request: HttpRequest, pk: int) -> HttpResponse:
        """Show the body, and send it again once that is confirmed."""
        if not self.has_resubmit_permission(request) or not self.has_view_permission(request):
            raise PermissionDenied
        old = get_object_or_404(Delivery, pk=pk)
        text = _text_of(old) if may_see_contents(request) else None
        form = BodyForm(request.POST or None, initial={"body": text})
        if request.method == "POST" and form.is_valid():
            try:
                return self._resubmit(request, old, _edit(text, form.cleaned_data["body"]))
            except REFUSED as refused:
                form.add_error(None, str(refused))
        context = {
            **self.admin_site.each_context(request),
            **page_of(self, f"Resubmit delivery {pk}"),
            "form": form,
            "delivery": old,
            "is_editable": text is not None,
        }
        return TemplateResponse(request, "delivery/resubmission.html", context)

    def _resubmit(self, request: HttpRequest, old: Delivery, edit: Edit | None) -> HttpResponse:
        new_id = resubmit(old.pk, edit=edit, max_bytes=settings.MAX_BODY_BYTES, senders=settings.QUEUE_SENDERS)
        self.log_change(request, old, f"Resubmitted as {new_id}{', its body edited' if edit else ''}.")
        self.message_user(request, f"This delivery repeats {old.pk}.", messages.SUCCESS)
        return HttpResponseRedirect(reverse("admin:delivery_delivery_change", args=[new_id]))


def _text_of(delivery: Delivery) -> str | None:
    """Return the body as it can be edited in a browser; None where it cannot."""
    message = Message.objects.only("body", "size").filter(pk=delivery.message_id or 0).first()
    if message is None or message.size > SHOWN_BYTES:
        return None
    try:
        return bytes(message.body).decode()
    except UnicodeDecodeError:
        return None


def _edit(text: str | None, given: str) -> Edit | None:
    """Return what was changed, None for nothing: browsers send other ends of lines than they were given."""
    return None if text is None or _lines(given) == _lines(text) else Edit(_lines(given).encode())


def _lines(text: str) -> str:
    return text.replace("\r\n", "\n").replace("\r", "\n")


class StatusFilter(admin.SimpleListFilter):
    """Those that stand so."""

    title = "status"
    parameter_name = "status__exact"

    def lookups(self, request: HttpRequest, model_admin: object) -> list[tuple[str, str]]:  # noqa: ARG002
        """Return the choices."""
        return [(value, label) for value, label in DeliveryStatus.choices]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Delivery]) -> QuerySet[Delivery]:  # noqa: ARG002
        """Return those of the choice."""
        status = self.value()
        return queryset.filter(standing(status)) if status else queryset


@admin.register(Delivery)
class DeliveryAdmin(ReplayableAdmin[Delivery], ResubmittingAdmin):
    """Where each delivery stands."""

    list_display = (
        "id",
        "status_label",
        "subscriber",
        "event_type",
        "sequence",
        "attempts",
        "reason",
        "next_try",
        "created_at",
        "finished_at",
    )
    list_filter = (
        StatusFilter,
        ("subscription", AutocompleteSelectFilter),
        ("line", AutocompleteSelectFilter),
    )
    list_select_related = ("subscription__subscriber", "subscription__event_type", "line")
    fields = (
        *("id", "status_label", "message_link", "subscription", "line", "sequence", "attempts", "next_try", "reason"),
        *("fetches", "in_flight_until", "not_before", "expires_at", "repeats", "repeated_as", "replay_link"),
        *("is_uncertain", "is_cancel_requested", "size"),
        *("created_at", "finished_at", "attempt_table", "group_table"),
    )
    readonly_fields = fields
    search_help_text = f"An id, with or without {WEBHOOK_ID_PREFIX}; or a group's with {GROUP_ID_PREFIX}"

    def get_queryset(self, request: HttpRequest) -> QuerySet[Delivery]:
        """Return the rows, narrowed to what a list shows, where the database would not find that along an index."""
        rows: QuerySet[Delivery] = super().get_queryset(request)
        return narrowed(rows, request.GET)

    def get_changelist_instance(self, request: HttpRequest) -> ChangeList:
        """Return a page of deliveries, with the callbacks of all replies among them read at once."""
        page = super().get_changelist_instance(request)
        keep_callbacks(page.result_list)
        return page

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Delivery], search_term: str
    ) -> tuple[QuerySet[Delivery], bool]:
        """Return the delivery of that id, as it stands here or as its subscriber received it; or those of a group."""
        term = searched(search_term)
        group_id = term.removeprefix(GROUP_ID_PREFIX)
        if group_id != term and is_id(group_id):
            return in_group(queryset, int(group_id)), False
        return super().get_search_results(request, queryset, term)

    def lookup_allowed(self, lookup: str, value: str, request: HttpRequest) -> bool:
        """Allow the links of message pages."""
        return lookup == "message__id" or super().lookup_allowed(lookup, value, request)

    @display(description="status", ordering="status", label=STATUS_COLOURS)
    def status_label(self, delivery: Delivery) -> str:
        """Return the status, coloured; PENDING where the time of whoever has fetched it is over."""
        return delivery.status_at(timezone.now())

    @display(description="next try")
    def next_try(self, delivery: Delivery) -> str:
        """Return when it is tried again, if it waits for that and has not ended."""
        return instant(delivery.next_try_at)

    @display(description="in flight until")
    def in_flight_until(self, delivery: Delivery) -> str:
        """Return when the hand-out times out, or has, of what a mailbox's client has."""
        return instant(delivery.fetched_until)

    @display(description="repeats")
    def repeats(self, delivery: Delivery) -> SafeString | str:
        """Return a link to the delivery that was sent again as this one."""
        return link_to("delivery_delivery", delivery.resubmit_of, delivery.resubmit_of)

    @display(description="made again as")
    def repeated_as(self, delivery: Delivery) -> SafeString | str:
        """Return links to what it was sent again as, the first ones first."""
        made = Delivery.objects.filter(resubmit_of=delivery.pk).order_by("pk")[:MAX_SHOWN]
        links = ((link_to("delivery_delivery", pk, pk),) for pk in made.values_list("pk", flat=True))
        return format_html_join(", ", "{}", links) or "-"

    @display(description="made by")
    def replay_link(self, delivery: Delivery) -> SafeString | str:
        """Return a link to the replay or backfill that made it."""
        return link_to("delivery_replay", delivery.replay_id, f"replay {delivery.replay_id}")

    @display(description="uncertain")
    def is_uncertain(self, delivery: Delivery) -> str:
        """Return whether the outcome of an earlier request is unknown."""
        return yes_or_no(delivery.uncertain)

    @display(description="cancel requested")
    def is_cancel_requested(self, delivery: Delivery) -> str:
        """Return whether it ends with the request that is under way."""
        return yes_or_no(delivery.cancel_requested)

    @display(description="subscriber")
    def subscriber(self, delivery: Delivery) -> SafeString | str:
        """Return who gets it."""
        return addressee_of(delivery)

    @display(description="event type")
    def event_type(self, delivery: Delivery) -> str:
        """Return what its subscription is for: an event type, or a pattern; or what a reply answers."""
        return events_of(delivery)

    @display(description="message")
    def message_link(self, delivery: Delivery) -> SafeString | str:
        """Return a link to the message, without loading its body."""
        return link_to("delivery_message", delivery.message_id, delivery.message_id)

    @display(description="group")
    def group_table(self, delivery: Delivery) -> SafeString | str:
        """Return the deliveries of its QUEUE group, of which one takes the message; a dash for none."""
        return mates_table(delivery.message_id, delivery.group_id)

    @display(description="attempts made")
    def attempt_table(self, delivery: Delivery) -> SafeString:
        """Return its attempts, the first ones first."""
        return attempts_table(delivery)
