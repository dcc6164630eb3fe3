"""Replays and backfills in the admin: their progress, and the form that starts a replay."""

from datetime import MAXYEAR, MINYEAR
from typing import Any, ClassVar, Final

from django import forms
from django.contrib import admin, messages
from django.core import signing
from django.db import IntegrityError
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.utils.dateparse import parse_datetime
from django.utils.html import format_html_join
from django.utils.safestring import SafeString

from broker_project.core.admin import theme
from broker_project.core.admin.model_admin import AutocompleteSelect, action, after_dialog, column, dialog, state_column
from broker_project.core.durations import time_left
from delivery.admin.read_only import ReadOnlyAdmin, exact, id_in, link_to, subscription_link
from delivery.models import Replay, ReplayKind, ReplayState
from delivery.replay import replay_job
from delivery.replay.eligibility import MAX_PACE, REPLAYABLE, RESUBMITTABLE, NothingToReplay, Selection
from delivery.replay.replay_job import ReplayFinished
from delivery.statuses import DeliveryStatus
from subscriptions.edit import StillInUse
from subscriptions.models import EventType, Subscriber, Subscription

SEAL_SECONDS: Final = 3600
"""How long a count is good for; after that it has to be counted again."""
SALT: Final = "delivery.admin.replays"
MAX_SHOWN_SUBSCRIPTIONS: Final = 20
CANCELLING: Final = (
    "Deliveries that the replay has already created are sent all the same. After a backfill the subscription is"
    " INACTIVE again, and all its unfinished deliveries are cancelled."
)
STATE_COLOURS: Final = {
    **dict.fromkeys(map(str, ReplayState), "info"),
    **dict.fromkeys(("CANCELLING", "CANCELLED"), "warning"),
    "FAILED": "danger",
    "DONE": "success",
}


def _found_by(model: Any, field: str) -> AutocompleteSelect:
    """Return a widget that finds rows as the form of `model` finds them for this link."""
    return AutocompleteSelect(model._meta.get_field(field), admin.site)  # noqa: SLF001 - documented by Django


class ReplayForm(forms.Form):
    """Which deliveries are replayed, and how fast."""

    subscription = forms.ModelChoiceField(
        Subscription.objects.all(), required=False, widget=_found_by(Replay, "subscription")
    )
    subscriber = forms.ModelChoiceField(
        Subscriber.objects.all(),
        required=False,
        widget=_found_by(Subscription, "subscriber"),
        help_text="Instead of a subscription: all subscriptions of a subscriber.",
    )
    event_type = forms.ModelChoiceField(
        EventType.objects.all(),
        required=False,
        widget=_found_by(Subscription, "event_type"),
        help_text="Leave empty for all event types.",
    )
    statuses = forms.MultipleChoiceField(
        choices=[(status, DeliveryStatus(status).label) for status in sorted(REPLAYABLE)],
        initial=sorted(RESUBMITTABLE),
        widget=theme.UnfoldAdminCheckboxSelectMultipleWidget,
    )
    begin = forms.DateTimeField(
        required=False,
        label="From",
        widget=theme.UnfoldAdminTextInputWidget,
        help_text="Created at this time or later (UTC), such as 2026-11-22 14:30.",
    )
    end = forms.DateTimeField(
        required=False, label="To", widget=theme.UnfoldAdminTextInputWidget, help_text="Created before this time (UTC)."
    )
    pace = forms.IntegerField(
        required=False,
        min_value=1,
        max_value=MAX_PACE,
        widget=theme.UnfoldAdminIntegerFieldWidget,
        help_text="New deliveries per second at most. Leave empty for no limit.",
    )

    def clean(self) -> dict[str, Any]:
        """Add the selection; refuse both or neither of subscription and subscriber, and an empty time range."""
        given: dict[str, Any] = self.cleaned_data
        if not self.errors and bool(given["subscription"]) == bool(given["subscriber"]):
            raise forms.ValidationError("Choose either a subscription or a subscriber.")
        if given.get("begin") and given.get("end") and given["begin"] >= given["end"]:
            self.add_error("end", "This must be later than the start.")
        for name in ("begin", "end"):
            # In another time zone it may be out of range.
            if given.get(name) and given[name].year in {MINYEAR, MAXYEAR}:
                self.add_error(name, "No delivery is of that year. Leave it empty for no limit.")
        if self.errors:
            return given
        one: Subscription | None = given["subscription"]
        try:
            selection = Selection.among(
                [one] if one else given["subscriber"].subscriptions.all(),
                statuses=given["statuses"],
                event_type_id=given["event_type"] and given["event_type"].pk,
                begin=given["begin"],
                end=given["end"],
            )
        except NothingToReplay as nothing:
            self.add_error("subscription" if one else "subscriber", str(nothing))
            return given
        return {**given, "selection": selection}


def _selection_table(replay: Replay) -> SafeString:
    """Return what a replay selects; rows that no longer exist are left out."""
    asked = replay.selection
    ids = asked.get("subscriptions", [])
    found = Subscription.objects.filter(pk__in=ids[:MAX_SHOWN_SUBSCRIPTIONS]).select_related("subscriber", "event_type")
    links: list[object] = [subscription_link(one) for one in found.order_by("pk")]
    if len(ids) > MAX_SHOWN_SUBSCRIPTIONS:
        links.append(f"and {len(ids) - MAX_SHOWN_SUBSCRIPTIONS} more")
    shown = {
        "subscriber": _link(Subscriber, asked.get("subscriber")),
        "subscriptions": format_html_join("", "<div>{}</div>", zip(links, strict=True)),
        "event type": _link(EventType, asked.get("event_type")),
        "statuses": ", ".join(DeliveryStatus(status).label for status in asked.get("statuses", [])),
        **{name: exact(parse_datetime(asked[name])) for name in ("from", "to", "since") if asked.get(name)},
    }
    return theme.table([], [(name, value) for name, value in shown.items() if value])


def _link(model: type[Subscriber] | type[EventType], pk: int | None) -> SafeString | str:
    found = model.objects.filter(pk=pk or 0).first()
    return link_to(f"subscriptions_{model._meta.model_name}", found.pk, found) if found else ""  # noqa: SLF001


def _progress(replay: Replay) -> SafeString:
    """Return how many deliveries a replay has created of how many; a backfill counts messages before any filter."""
    if replay.state == ReplayState.COUNTING:
        return theme.progress(0, f"counting: {replay.total} so far")
    percent = min(99, 100 * (replay.filed + replay.skipped) // max(1, replay.total))
    unfiltered = ", before any filter" if replay.kind == ReplayKind.BACKFILL else ""
    text = f"{replay.filed} of {replay.total}{unfiltered}{time_left(_seconds_left(replay))}"
    return theme.progress(100 if replay.state == ReplayState.DONE else percent, text)


def _seconds_left(replay: Replay) -> float | None:
    """Return how long a replay still takes at the speed that it has had; None if it has ended or not begun."""
    done = replay.filed + replay.skipped
    if replay.finished_at or not done:
        return None
    return (replay.updated_at - replay.created_at).total_seconds() * (replay.total - done) / done


def _refreshed_progress(replay: Replay) -> SafeString:
    """Return the progress on the page of a replay, which refreshes it until the replay has ended."""
    page = None if replay.finished_at else reverse("admin:delivery_replay_change", args=[replay.pk])
    return theme.refreshed(_progress(replay), page)


@admin.register(Replay)
class ReplayAdmin(ReadOnlyAdmin[Replay]):
    """Replays and backfills."""

    when_empty = "Nothing has been replayed yet. Use New replay above to send past deliveries again."
    list_display = ("id", "kind", "state_label", "subscription", "progress", "skipped", "created_by", "created_at")
    list_filter = ("kind", "state")
    time_column = "created_at"
    list_select_related = ("subscription__subscriber", "subscription__event_type")
    fields = (
        *("id", "kind", "state_label", "refreshed_progress", "skipped", "reason", "selected", "pace"),
        *("created_by", "created_at", "updated_at", "finished_at"),
    )
    actions_list: ClassVar[tuple[str, ...]] = ("new_replay",)
    actions_detail: ClassVar[tuple[str, ...]] = ("cancel",)

    def has_cancel_permission(self, request: HttpRequest, object_id: object) -> bool:
        """Tell whether the user may cancel it; a backfill's subscription is INACTIVE then."""
        if not self.has_replay_permission(request):
            return False
        may_inactivate = request.user.has_perm("subscriptions.change_subscription")
        return may_inactivate or not self.only(object_id).filter(kind=ReplayKind.BACKFILL).exists()

    state_label = state_column("state", lambda replay: ReplayState(replay.state), STATE_COLOURS, ordering="state")
    progress = column("created", _progress)
    refreshed_progress = column("created", _refreshed_progress)
    selected = column("selection", _selection_table)

    @action(description="New replay", permissions=["replay"], icon="replay", url_path="new")
    def new_replay(self, request: HttpRequest) -> HttpResponse:
        """Ask which deliveries, count them, and begin the replay once the count was seen."""
        if "counted" in request.POST:
            return self._begin(request, request.POST["counted"])
        initial: dict[str, object] = {
            name: request.GET[name] for name in ("subscription", "subscriber", "event_type") if id_in(request.GET, name)
        }
        initial |= {name: request.GET[name] for name in ("begin", "end") if name in request.GET}
        if statuses := request.GET.getlist("statuses"):
            initial["statuses"] = statuses
        form = ReplayForm(request.POST or None, initial=initial)
        context: dict[str, object] = {"form": form}
        if form.is_valid():
            given = form.cleaned_data
            subscription_id = given["subscription"] and given["subscription"].pk
            seal = signing.dumps([given["selection"].kept(), subscription_id, given["pace"]], salt=SALT)
            counted = replay_job.count(given["selection"])
            words = {DeliveryStatus(status).label.lower(): number for status, number in counted.by_status.items()}
            context |= {"counted": counted, "by_status": words, "seal": seal}
        return self.page(request, "delivery/replay_form.html", "New replay", **context)

    def _begin(self, request: HttpRequest, seal: str) -> HttpResponse:
        """Begin the replay that was counted; its page carries what the form asked for, signed."""
        try:
            kept, subscription_id, pace = signing.loads(seal, salt=SALT, max_age=SEAL_SECONDS)
        except signing.BadSignature:
            self.message_user(request, "The count is more than an hour old. Count again.", messages.WARNING)
            return HttpResponseRedirect(reverse("admin:delivery_replay_new_replay"))
        try:
            replay = replay_job.begin(
                Selection.of(kept), pace=pace, subscription_id=subscription_id, created_by=str(request.user)
            )
        except IntegrityError:
            self.message_user(request, "The subscription was deleted meanwhile.", messages.WARNING)
            return HttpResponseRedirect(reverse("admin:delivery_replay_new_replay"))
        self.log_addition(request, replay, "Started.")
        self.message_user(request, "The replay has started.", messages.SUCCESS)
        return HttpResponseRedirect(self.change_url(replay.pk))

    @action(
        description="Cancel",
        permissions=["cancel"],
        icon="cancel",
        variant=theme.ActionVariant.DANGER,
        dialog=dialog("Cancel this replay?", CANCELLING, "Cancel replay", variant=theme.ActionVariant.DANGER),
        refusals=(ReplayFinished, StillInUse),
        offered=lambda replay: replay.finished_at is None and replay.state != ReplayState.CANCELLING,
    )
    def cancel(self, request: HttpRequest, _form: object, object_id: str) -> HttpResponse:
        """End it."""
        replay_job.cancel(int(object_id), reason="cancelled in the admin")
        self.report_change(request, Replay.objects.get(pk=object_id), "Cancelled.")
        return after_dialog(request, self.change_url(object_id))
