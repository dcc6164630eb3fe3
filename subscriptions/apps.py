"""Django's configuration of this app, with its deployment check."""

from typing import Any

from django.apps import AppConfig
from django.core.checks import CheckMessage, Tags, Warning, register  # noqa: A004 - Django's name
from django.urls import register_converter

from subscriptions.names import NameConverter
from subscriptions.scripting.seccomp import is_possible

NOT_CONFINED = Warning(
    "Scripts run without a filter of system calls: an exploit of the JavaScript engine can do what the worker's user "
    "can, within the limits of its process.",
    hint="Run workers where Linux has seccomp filters, on x86_64 or aarch64, or let only trusted people write scripts.",
    id="subscriptions.W001",
)


def check_scripts_are_confined(**_: Any) -> list[CheckMessage]:
    """Warn if the kernel cannot restrict the system calls of script processes."""
    return [] if is_possible() else [NOT_CONFINED]


class SubscriptionsConfig(AppConfig):
    """The configuration that people and keys manage."""

    name = "subscriptions"

    def ready(self) -> None:
        """Register the path converter `name` and the deployment check."""
        register_converter(NameConverter, "name")
        register(check_scripts_are_confined, Tags.security, deploy=True)
