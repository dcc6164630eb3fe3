"""Django's handle on this app."""

from django.apps import AppConfig


class DeliveryConfig(AppConfig):
    """From publisher to endpoint."""

    name = "delivery"
