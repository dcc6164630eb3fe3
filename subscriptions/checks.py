"""What `manage.py check --deploy` says about the machine that runs scripts."""

from typing import Any

from django.core import checks

from subscriptions.scripting.seccomp import is_possible

NOT_CONFINED = checks.Warning(
    "Scripts run without a filter of system calls: whoever breaks out of the JavaScript engine can do what the worker's"
    " user can, within the limits of its process.",
    hint="Run workers where Linux has seccomp filters, on x86_64 or aarch64, or let only whom you trust write scripts.",
    id="subscriptions.W001",
)


def scripts_are_confined(**_asked: Any) -> list[checks.CheckMessage]:
    """Warn where the kernel cannot take system calls from the processes of scripts."""
    return [] if is_possible() else [NOT_CONFINED]
