"""The form of a subscription: texts that are code look like code, and are checked as such."""

from django import forms

from subscriptions.scripts.checking import check_script


class SubscriptionForm(forms.ModelForm):  # type: ignore[type-arg]  # no brackets at run time
    """A subscription's form."""

    def clean_script(self) -> str:
        """Refuse a new script that is no JavaScript."""
        source: str = self.cleaned_data["script"]
        if "script" in self.changed_data:
            check_script(source)
        return source
