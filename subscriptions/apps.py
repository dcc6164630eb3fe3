"""Django's handle on this app."""

from django.apps import AppConfig


class SubscriptionsConfig(AppConfig):
    """Who wants what."""

    name = "subscriptions"
