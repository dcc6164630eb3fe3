"""Django's handle on this app."""

from django.apps import AppConfig
from django.core.checks import Tags, register
from django.urls import register_converter

from subscriptions.checks import scripts_are_confined
from subscriptions.names import NameConverter


class SubscriptionsConfig(AppConfig):
    """Who wants what."""

    name = "subscriptions"

    def ready(self) -> None:
        """Let paths have names in them, and have the machine looked at before deployment."""
        register_converter(NameConverter, "name")
        register(scripts_are_confined, Tags.security, deploy=True)
