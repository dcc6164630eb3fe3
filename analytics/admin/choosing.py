"""What of the summaries is looked at, as people choose it."""

import datetime as dt
from typing import Final, Self

from django import forms
from django.core.validators import MaxValueValidator, MinValueValidator
from django.http import QueryDict

from analytics.figures.selection import Selection
from analytics.pipeline.job import DAY
from analytics.ranges import LENGTHS, Range, latest
from broker_project.core.admin.theme import UnfoldAdminSelectWidget, UnfoldAdminTextInputWidget
from subscriptions.models import Subscriber

EARLIEST: Final = dt.date(2000, 1, 1)
LATEST: Final = dt.date(2999, 12, 31)
CHOICES: Final = {"24h": "24 hours", "3d": "3 days", "7d": "7 days", "28d": "28 days"}


class SelectionForm(forms.Form):
    """A range that ends now or with a day, of one subscriber or of all."""

    range = forms.ChoiceField(choices=[*CHOICES.items()], widget=UnfoldAdminSelectWidget)
    until = forms.DateField(
        required=False,
        widget=UnfoldAdminTextInputWidget({"type": "date"}),
        validators=[MinValueValidator(EARLIEST), MaxValueValidator(LATEST)],
        help_text="The last day; empty: up to now.",
    )
    subscriber = forms.CharField(required=False, widget=UnfoldAdminTextInputWidget, help_text="A name; empty: all.")

    @classmethod
    def of(cls, chosen: QueryDict) -> Self:
        """Return the form as it was filled in, or not yet."""
        return cls({"range": "24h", **chosen.dict()})

    def clean_subscriber(self) -> Subscriber | None:
        """Find the subscriber."""
        name = self.cleaned_data["subscriber"]
        found = Subscriber.objects.filter(name=name).first() if name else None
        if name and found is None:
            raise forms.ValidationError("There is no subscriber of this name.")
        return found

    def selection(self, now: dt.datetime) -> Selection | None:
        """Return what is chosen; None where something of it cannot be."""
        if not self.is_valid():
            return None
        length, until = LENGTHS[self.cleaned_data["range"]], self.cleaned_data["until"]
        subscriber = self.cleaned_data["subscriber"]
        asked = _ending_with(until, length) if until else latest(length, now)
        return Selection(asked, subscriber.pk if subscriber else None)


def _ending_with(day: dt.date, length: dt.timedelta) -> Range:
    end = dt.datetime.combine(day, dt.time(), dt.UTC) + DAY
    return Range(end - length, end)
