"""What a replay is asked for by in the admin, and the seal on what was counted."""

from dataclasses import dataclass
from typing import Any, Final, Self

from django import forms
from django.contrib import admin
from django.core import signing

from broker_project.core.admin.row_ids import AutocompleteSelect
from broker_project.core.admin.theme import (
    UnfoldAdminCheckboxSelectMultipleWidget,
    UnfoldAdminIntegerFieldWidget,
    UnfoldAdminTextInputWidget,
)
from delivery.models import Replay
from delivery.replay.eligibility import REPLAYABLE, RESUBMITTABLE
from delivery.replay.selection import MOST_PACE, NothingToReplay, Selection
from subscriptions.models import EventType, Subscriber, Subscription

SEALED_SECONDS: Final = 3600
"""What was counted longer ago has to be counted again."""
SALT: Final = "delivery.admin.replay_form"


@dataclass(frozen=True, slots=True)
class Asked:
    """What somebody wants made again."""

    selection: Selection
    subscription_id: int | None
    """The one that was named, if it was one."""
    pace: int | None

    def sealed(self) -> str:
        """Return it as text that a page carries and nobody changes."""
        return signing.dumps([self.selection.kept(), self.subscription_id, self.pace], salt=SALT)

    @classmethod
    def unsealed(cls, text: str) -> Self | None:
        """Return what was sealed; None for what was not, or too long ago."""
        try:
            kept, subscription_id, pace = signing.loads(text, salt=SALT, max_age=SEALED_SECONDS)
        except signing.BadSignature:
            return None
        return cls(Selection.of(kept), subscription_id, pace)


def _found_by(model: Any, field: str) -> AutocompleteSelect:
    """Return what finds one of those that `model`'s link refers to by what is typed."""
    return AutocompleteSelect(model._meta.get_field(field), admin.site)  # noqa: SLF001 - documented by Django


class ReplayForm(forms.Form):
    """Which deliveries are to be made again, and how fast."""

    subscription = forms.ModelChoiceField(
        Subscription.objects.all(), required=False, widget=_found_by(Replay, "subscription")
    )
    subscriber = forms.ModelChoiceField(
        Subscriber.objects.all(),
        required=False,
        widget=_found_by(Subscription, "subscriber"),
        help_text="Or a subscriber: all its subscriptions.",
    )
    event_type = forms.ModelChoiceField(
        EventType.objects.all(),
        required=False,
        widget=_found_by(Subscription, "event_type"),
        help_text="If only what was published as that is wanted.",
    )
    statuses = forms.MultipleChoiceField(
        choices=[(status, status) for status in sorted(REPLAYABLE)],
        initial=sorted(RESUBMITTABLE),
        widget=UnfoldAdminCheckboxSelectMultipleWidget,
    )
    begin = forms.DateTimeField(
        required=False,
        label="From",
        widget=UnfoldAdminTextInputWidget,
        help_text="Made then or later (UTC), such as 2026-11-22 14:30.",
    )
    end = forms.DateTimeField(
        required=False, label="To", widget=UnfoldAdminTextInputWidget, help_text="Made before (UTC)."
    )
    pace = forms.IntegerField(
        required=False,
        min_value=1,
        max_value=MOST_PACE,
        widget=UnfoldAdminIntegerFieldWidget,
        help_text="New deliveries a second at most; empty: as fast as it goes.",
    )

    def clean(self) -> dict[str, Any]:
        """Refuse both or none of a subscription and a subscriber, and a range that ends before it begins."""
        given: dict[str, Any] = self.cleaned_data
        if not self.errors and bool(given["subscription"]) == bool(given["subscriber"]):
            raise forms.ValidationError("Give a subscription or a subscriber.")
        if given.get("begin") and given.get("end") and given["begin"] >= given["end"]:
            self.add_error("end", "This is not after the beginning.")
        return given if self.errors else {**given, "selection": self._selection(given)}

    def asked(self) -> Asked:
        """Return what the form says, once it is valid."""
        given = self.cleaned_data
        return Asked(given["selection"], given["subscription"] and given["subscription"].pk, given["pace"])

    def _selection(self, given: dict[str, Any]) -> Selection | None:
        one: Subscription | None = given["subscription"]
        try:
            return Selection.among(
                [one] if one else given["subscriber"].subscriptions.all(),
                statuses=given["statuses"],
                event_type_id=given["event_type"] and given["event_type"].pk,
                begin=given["begin"],
                end=given["end"],
            )
        except NothingToReplay as nothing:
            self.add_error("subscription" if one else "subscriber", str(nothing))
            return None
