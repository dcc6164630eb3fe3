"""Pausing subscriptions, and letting them go on (behaviour 1.6)."""

from typing import Final

from django.urls import URLPattern

urlpatterns: Final[list[URLPattern]] = []
