"""Which endpoints fail most."""

from dataclasses import dataclass
from typing import Final

from analytics.figures.selecting import SELECTED, Selection, selected

FAILING: Final = f"""
WITH chosen AS (
  SELECT subscription_id, subscriber, event_type, endpoint, attempts, retries, failures, held_seconds, by_class
    FROM analytics_endpoints WHERE {SELECTED}),
most AS (
  SELECT subscription_id, max(subscriber) AS subscriber, max(endpoint) AS endpoint, sum(attempts)::bigint AS attempts,
         sum(retries)::bigint AS retries, sum(failures)::bigint AS failures, sum(held_seconds) AS held_seconds
    FROM chosen GROUP BY subscription_id HAVING sum(failures) > 0
   ORDER BY sum(failures) DESC, subscription_id LIMIT 20)
SELECT m.*, (SELECT jsonb_object_agg(class, number)
               FROM (SELECT class, sum(number::bigint) AS number
                       FROM chosen c, jsonb_each_text(c.by_class) AS b (class, number)
                      WHERE c.subscription_id IS NOT DISTINCT FROM m.subscription_id GROUP BY class) AS classes)
  FROM most m ORDER BY m.failures DESC, m.subscription_id
"""


@dataclass(frozen=True, slots=True)
class Failing:
    """One subscription's endpoint that failed."""

    subscription_id: int | None
    """None: the addresses that replies to callbacks go to."""
    subscriber: str
    endpoint: str
    attempts: int
    retries: int
    failures: int
    held_seconds: float
    by_class: dict[str, int]

    @property
    def failure_rate(self) -> float:
        """The share of its attempts that failed."""
        return self.failures / self.attempts

    @property
    def commonest(self) -> str:
        """The class of most of its failures."""
        failures = {name: number for name, number in self.by_class.items() if name != "2xx"}
        return max(failures, key=lambda name: (failures[name], name), default="")


def failing_endpoints(selection: Selection) -> list[Failing]:
    """Return those that failed most often, worst first."""
    return [Failing(*columns) for columns in selected(FAILING, selection)]
