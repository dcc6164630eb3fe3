"""Django's handle on this app."""

from django.apps import AppConfig


class PeopleConfig(AppConfig):
    """Who looks in."""

    name = "people"
