"""Writing a history, an hour at a time."""

import datetime as dt
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Final

from django.db import connection, transaction

from benchmarks.history import lives, rows
from benchmarks.history.endings import ENDINGS, ERRORS
from benchmarks.history.history import participants, switch
from delivery.maintenance.partitions import open_days
from delivery.models import MessageOutcome
from delivery.statuses import FINAL, UNFINISHED

HOUR: Final = dt.timedelta(hours=1)
MILLISECOND: Final = dt.timedelta(milliseconds=1)

HIGHS: Final = list(accumulate(ending.weight for ending in ENDINGS))
WORDS: Final[dict[str, Any]] = {
    "statuses": [ending.status.value for ending in ENDINGS],
    "planned": [ending.attempts for ending in ENDINGS],
    "failing": [ending.failing for ending in ENDINGS],
    "lasts": [ending.last for ending in ENDINGS],
    "lows": [0, *HIGHS[:-1]],
    "highs": HIGHS,
    "final": [status.value for status in FINAL],
    "unfinished": [status.value for status in UNFINISHED],
    "astray": [outcome.value for outcome in MessageOutcome if outcome != MessageOutcome.ROUTED],
    "errors": list(ERRORS),
}


@dataclass(frozen=True, slots=True)
class History:
    """How much has happened, and until when."""

    until: dt.datetime
    messages: int = 100_000
    """With about twice as many deliveries and attempts."""
    days: int = 3
    """Of which the last one is that of `until`."""
    subscribers: int = 20
    """Even."""
    seed: int = 1

    @property
    def hours(self) -> list[dt.datetime]:
        """The beginnings of its hours."""
        start = dt.datetime.combine(self.until.date() - dt.timedelta(days=self.days - 1), dt.time(), dt.UTC)
        return [start + number * HOUR for number in range((self.until - start) // HOUR + 1)]

    def write(self) -> None:
        """Write it into the database, an hour a transaction; there must be nothing else of this kind in it yet."""
        for day in sorted({hour.date() for hour in self.hours}):
            open_days(day, ahead=1)
        arguments, leaving = participants(self.subscribers)
        per_hour = max(10, self.messages // len(self.hours) // 10 * 10)
        step = HOUR // per_hour // MILLISECOND * MILLISECOND
        arguments |= WORDS | {"until": self.until, "per_hour": per_hour, "step": step}
        with connection.cursor() as cursor:
            cursor.execute(lives.FUNCTIONS.format(seed=self.seed))
            for number, hour in enumerate(self.hours):
                with transaction.atomic():
                    for statement in (*lives.AN_HOUR, *rows.AN_HOUR):
                        cursor.execute(statement, {**arguments, "hour": hour, "first": number * per_hour})
        leaving.delete()
        switch(self.hours[-1])
