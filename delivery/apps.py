"""Django's handle on this app."""

from django.apps import AppConfig
from django.urls import register_converter

from broker_project.core.api.fields import id_converter
from delivery.statuses import DELIVERY_ID_PREFIX, MESSAGE_ID_PREFIX


class DeliveryConfig(AppConfig):
    """From publisher to endpoint."""

    name = "delivery"

    def ready(self) -> None:
        """Register the path converters of ids."""
        register_converter(id_converter(MESSAGE_ID_PREFIX), "message_id")
        register_converter(id_converter(DELIVERY_ID_PREFIX), "delivery_id")
