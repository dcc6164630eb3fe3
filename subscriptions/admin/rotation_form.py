"""How a signing secret is rotated in the admin."""

from datetime import timedelta
from typing import Final

from django import forms

from broker_project.core.admin.theme import UnfoldAdminIntegerFieldWidget
from subscriptions.credentials.rotate_secrets import LONGEST_OVERLAP, OVERLAP

HOUR: Final = timedelta(hours=1)


class RotationForm(forms.Form):
    """How long the former secret signs beside the new one."""

    hours = forms.IntegerField(
        label="Hours for which the former one signs too",
        min_value=0,
        max_value=LONGEST_OVERLAP // HOUR,
        initial=OVERLAP // HOUR,
        help_text="0: from the next request on only the new one signs.",
        widget=UnfoldAdminIntegerFieldWidget,
    )

    @property
    def overlap(self) -> timedelta:
        """What was asked for."""
        return HOUR * int(self.cleaned_data["hours"])
