"""Say what is wrong with this installation, and what to do."""

import sys
from collections.abc import Iterator
from typing import Any, Final

from django.conf import settings
from django.core import checks
from django.core.management import BaseCommand
from django.db import DatabaseError, InterfaceError
from django.db.models import Count
from kombu.exceptions import OperationalError
from redis.exceptions import RedisError

from broker_project.celery import app
from broker_project.health import Finding, findings
from delivery.models import Line

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
    yield _lines()
    yield _queues()
    messages = checks.run_checks(include_deployment_checks=not settings.DEVELOPMENT)
    for message in messages:
        yield Finding("settings", message.msg, message.hint or "")
    if not messages:
        yield Finding("settings")


def _lines() -> Finding:
    """Say which subscribers have a line twice, which their keys in the database cannot exclude (decision 0064)."""
    of_lanes = Line.objects.exclude(subscriber=None).values("subscriber", "lane").alias(lines=Count("id"))
    try:
        names = sorted(of_lanes.filter(lines__gt=1).values_list("subscriber__name", flat=True))
    except (DatabaseError, InterfaceError):
        return Finding("lines", "unknown", "PostgreSQL would tell.")
    problem = f"two lines in one lane, so no order: {', '.join(names)}" if names else ""
    return Finding("lines", problem, "Stop all workers, and delete the lines that have no deliveries.")


def _queues() -> Finding:
    """Say which Celery queues no worker consumes; the work of those that carry lines is taken over after a while."""
    try:
        answers = app.control.inspect(timeout=INSPECT_SECONDS).active_queues() or {}
    except (OSError, OperationalError, RedisError):
        return Finding("queues", "unknown", "Redis would tell.")
    consumed = {queue["name"] for queues in answers.values() for queue in queues}
    missing = [queue for queue in settings.QUEUES if queue not in consumed]
    return Finding(
        "queues",
        f"no worker consumes {', '.join(missing)}" if missing else "",
        "Start workers that do: one without -Q consumes all queues, but `analytics` needs one of its own.",
    )
