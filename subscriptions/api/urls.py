"""The addresses of the management API, below `/api/v1/`."""

from django.urls import include, path
from rest_framework.routers import SimpleRouter

from subscriptions.api.api_keys import ApiKeys, create_portal_link
from subscriptions.api.event_types import EventTypeFile, EventTypes
from subscriptions.api.resources import Publishers, RetryPolicies, Subscribers
from subscriptions.api.subscriptions import Subscriptions

router = SimpleRouter(trailing_slash=False, use_regex_path=False)
router.register("event-types", EventTypes, basename="event-type")
router.register("publishers", Publishers, basename="publisher")
router.register("api-keys", ApiKeys, basename="api-key")
router.register("retry-policies", RetryPolicies, basename="retry-policy")
router.register("subscribers", Subscribers, basename="subscriber")
router.register("subscriptions", Subscriptions, basename="subscription")

urlpatterns = [
    path("", include(router.urls)),
    path("event-type-file", EventTypeFile.as_view(), name="event-type-file"),
    path("subscribers/<name:name>/portal-links", create_portal_link),
]
