"""Django's handle on this app."""

from django.apps import AppConfig


class AccountsConfig(AppConfig):
    """The accounts of the admin site."""

    name = "broker_project.accounts"
