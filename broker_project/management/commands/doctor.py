"""Say what is wrong with this installation, and what to do."""

import sys
from collections.abc import Iterator
from typing import Any, Final

from django.conf import settings
from django.core import checks
from django.core.management import BaseCommand

from broker_project.celery import app
from broker_project.diagnosis import Finding, findings

INSPECT_SECONDS: Final = 2.0


class Command(BaseCommand):
    """Prints a line for each part, and what to do about each problem; ends with status 1 if there is any."""

    help = __doc__

    def handle(self, *_arguments: object, **_options: Any) -> None:
        """Look at everything once."""
        has_problem = False
        for one in _everything():
            has_problem |= bool(one.problem)
            state = self.style.ERROR("wrong") if one.problem else self.style.SUCCESS("ok   ")
            self.stdout.write(f"{state} {one.part}{': ' if one.problem else ''}{one.problem}")
            if one.problem and one.advice:
                self.stdout.write(f"      {one.advice}")
        sys.exit(1 if has_problem else 0)


def _everything() -> Iterator[Finding]:
    yield from findings()
    yield _queues()
    messages = checks.run_checks(include_deployment_checks=not settings.DEVELOPMENT)
    for message in messages:
        yield Finding("settings", message.msg, message.hint or "")
    if not messages:
        yield Finding("settings")


def _queues() -> Finding:
    """Say which Celery queues no worker consumes; the work of those that carry lines is taken over after a while."""
    try:
        answers = app.control.inspect(timeout=INSPECT_SECONDS).active_queues() or {}
    except OSError:
        answers = {}
    consumed = {queue["name"] for queues in answers.values() for queue in queues}
    missing = [queue for queue in settings.QUEUES if queue not in consumed]
    return Finding(
        "queues",
        f"no worker consumes {', '.join(missing)}" if missing else "",
        "Start workers that do: one without -Q consumes all queues, but `analytics` needs one of its own.",
    )
