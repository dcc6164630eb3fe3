"""Deliveries and messages that came to nothing (behaviour 5.3)."""

from typing import Final

from django.urls import URLPattern

urlpatterns: Final[list[URLPattern]] = []
