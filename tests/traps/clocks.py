"""Rules about time."""

import ast
from collections.abc import Iterator

from tests.traps.rule import Rule, calls_of, rule_modules
from tests.traps.sources import Source

TIMERS = {"countdown", "eta"}
WALL_CLOCKS = (
    *("time.time", "time.time_ns", "datetime.datetime.now", "datetime.datetime.utcnow", "datetime.datetime.today"),
    *("datetime.date.today", "django.utils.timezone.now", "django.utils.timezone.localtime"),
    *("django.db.models.functions.Now", "django.db.models.functions.datetime.Now"),
)
TIMED = ("again", "calls", "driving", "lines", "mailboxes", "probing", "queues", "retention", "settling", "waking")


def celery_timers(source: Source) -> Iterator[ast.AST]:
    for node in source.nodes:
        match node:
            case ast.keyword(arg=str(name)) if name in TIMERS:
                yield node.value
            case ast.Dict(keys=keys):
                yield from (key for key in keys if isinstance(key, ast.Constant) and key.value in TIMERS)


RULES = (
    Rule(
        "celery-timer",
        "Celery keeps such tasks in Redis and delivers them again in loops: a due time is a column.",
        celery_timers,
    ),
    Rule(
        "wall-clock",
        "Leases and due times are PostgreSQL's clock_timestamp(), what people see is given; rules have no clock.",
        calls_of(*WALL_CLOCKS),
        within=(*rule_modules(), *(f"delivery/{name}/" for name in TIMED)),
        apart_from={
            "delivery/calls/calling.py": "the timestamp of a signature, which receivers compare with their clocks",
            "delivery/driving/rounds.py": "likewise",
        },
    ),
)
