"""Django's handle on this app."""

from django.apps import AppConfig


class AnalyticsConfig(AppConfig):
    """Summaries of what happened."""

    name = "analytics"
