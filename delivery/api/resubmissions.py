"""Sending one delivery, or one message, again (behaviour 5.8)."""

from typing import Final

from django.urls import URLPattern

urlpatterns: Final[list[URLPattern]] = []
