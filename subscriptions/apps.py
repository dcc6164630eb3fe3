"""Django's handle on this app."""

from django.apps import AppConfig
from django.urls import register_converter

from subscriptions.names import NameConverter


class SubscriptionsConfig(AppConfig):
    """Who wants what."""

    name = "subscriptions"

    def ready(self) -> None:
        """Let paths have names in them."""
        register_converter(NameConverter, "name")
