"""What a replay is asked for by in the admin."""

from typing import Any, Final

from django import forms

from delivery.again.refusals import REPLAYABLE, RESUBMITTABLE
from delivery.again.selecting import Selection
from subscriptions.admin.theme import UnfoldAdminIntegerFieldWidget, UnfoldAdminTextInputWidget
from subscriptions.models import EventType, Subscriber, Subscription

MOST_PACE: Final = 100_000
LARGEST_ID: Final = 2**63 - 1


def _number(most: int, text: str) -> forms.IntegerField:
    return forms.IntegerField(
        required=False, min_value=1, max_value=most, widget=UnfoldAdminIntegerFieldWidget, help_text=text
    )


def _name(text: str) -> forms.CharField:
    return forms.CharField(required=False, widget=UnfoldAdminTextInputWidget, help_text=text)


class ReplayForm(forms.Form):
    """Which deliveries are to be made again, and how fast."""

    subscription = _number(LARGEST_ID, "Its id.")
    subscriber = _name("Or the name of a subscriber: all its subscriptions.")
    event_type = _name("Its name, if only what was published as that is wanted.")
    statuses = forms.MultipleChoiceField(
        choices=[(status, status) for status in sorted(REPLAYABLE)],
        initial=sorted(RESUBMITTABLE),
        widget=forms.CheckboxSelectMultiple,
    )
    begin = forms.DateTimeField(
        required=False, label="from", widget=UnfoldAdminTextInputWidget, help_text="Made then or later (UTC)."
    )
    end = forms.DateTimeField(
        required=False, label="to", widget=UnfoldAdminTextInputWidget, help_text="Made before (UTC)."
    )
    pace = _number(MOST_PACE, "New deliveries a second at most; empty: as fast as it goes.")

    def clean(self) -> dict[str, Any]:
        """Find what is named."""
        given: dict[str, Any] = self.cleaned_data
        if bool(given.get("subscription")) == bool(given.get("subscriber")):
            raise forms.ValidationError("Give a subscription or a subscriber.")
        if given.get("begin") and given.get("end") and given["begin"] >= given["end"]:
            self.add_error("end", "This is not after the beginning.")
        return {**given, "selection": self._selection(given)}

    def _selection(self, given: dict[str, Any]) -> Selection | None:
        found = _subscriptions(given)
        if not found:
            self.add_error("subscription" if given.get("subscription") else "subscriber", "There is none of it.")
        event_type = EventType.objects.filter(name=given.get("event_type") or "").first()
        if given.get("event_type") and event_type is None:
            self.add_error("event_type", "There is no such event type.")
        if not found or self.errors:
            return None
        ids = [one.pk for one in found]
        return Selection(
            found[0].subscriber_id,
            ids,
            sorted(given["statuses"]),
            event_type.pk if event_type else None,
            given["begin"],
            given["end"],
        )


def _subscriptions(given: dict[str, Any]) -> list[Subscription]:
    if given.get("subscription"):
        return [*Subscription.objects.filter(pk=given["subscription"])]
    subscriber = Subscriber.objects.filter(name=given["subscriber"]).first()
    return [*subscriber.subscriptions.order_by("pk")] if subscriber else []
