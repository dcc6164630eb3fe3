"""The form of a subscription: texts that are code look like code, and are checked as such."""

from django.conf import settings
from django.core.exceptions import ValidationError

from subscriptions.admin.headed import HeadedForm
from subscriptions.endpoints import check_reach
from subscriptions.scripting.script_check import check_script


class SubscriptionForm(HeadedForm):
    """A subscription's form."""

    def clean_endpoint(self) -> str:
        """Refuse a new address to which nothing is sent."""
        return self._within_reach("endpoint")

    def clean_monitor_url(self) -> str:
        """Refuse a new address to which nothing is sent."""
        return self._within_reach("monitor_url")

    def _within_reach(self, name: str) -> str:
        url: str = self.cleaned_data[name]
        if name in self.changed_data:
            check_reach(url, settings.REACH)
        return url

    def clean_script(self) -> str:
        """Refuse a new script that is no JavaScript."""
        source: str = self.cleaned_data["script"]
        if "script" in self.changed_data:
            self.instance.script = source  # else one that is refused is missed as well
            check_script(source)
        return source

    def full_clean(self) -> None:
        """Say beside its field what another subscription stands in the way of."""
        super().full_clean()
        is_same = self.instance.pk and self.instance.compared.isdisjoint(self.changed_data)
        if not self.is_bound or self.errors or is_same:
            return
        try:
            self.instance.clean_among_others()
        except ValidationError as refused:
            self.add_error(None, refused)
