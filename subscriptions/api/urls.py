"""The addresses of the management API, below `/api/v1/`."""

from django.urls import include, path, register_converter
from rest_framework.routers import SimpleRouter

from subscriptions.api.api_keys import ApiKeys
from subscriptions.api.event_type_file import EventTypeFile
from subscriptions.api.event_types import EventTypes
from subscriptions.api.publishers import Publishers
from subscriptions.api.retry_policies import RetryPolicies
from subscriptions.api.subscribers import Subscribers
from subscriptions.api.subscriptions import Subscriptions


class NameConverter:
    """A name in a path; what cannot be one is 404 without a query."""

    regex = r"[A-Za-z0-9][A-Za-z0-9._-]{0,254}"

    def to_python(self, value: str) -> str:
        """Return the name."""
        return value

    def to_url(self, value: str) -> str:
        """Return the name."""
        return value


register_converter(NameConverter, "name")

router = SimpleRouter(trailing_slash=False, use_regex_path=False)
router.register("event-types", EventTypes, basename="event-type")
router.register("publishers", Publishers, basename="publisher")
router.register("api-keys", ApiKeys, basename="api-key")
router.register("retry-policies", RetryPolicies, basename="retry-policy")
router.register("subscribers", Subscribers, basename="subscriber")
router.register("subscriptions", Subscriptions, basename="subscription")

urlpatterns = [path("event-type-file", EventTypeFile.as_view(), name="event-type-file"), path("", include(router.urls))]
