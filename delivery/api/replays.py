"""Sending many deliveries again, and a new subscription what was published before it (behaviour 5.8)."""

from typing import Final

from django.urls import URLPattern

urlpatterns: Final[list[URLPattern]] = []
