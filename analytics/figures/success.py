"""Which endpoints fail most."""

from dataclasses import dataclass
from typing import Final

from analytics.figures.selection import SELECTED, Selection, selected

NOBODYS_0: Final = "COALESCE(subscription_id, 0)"
"""What replies to callbacks have in common; null equals nothing."""
FAILING: Final = f"""
WITH most AS (
  SELECT subscription_id, max(subscriber) AS subscriber, max(endpoint) AS endpoint, sum(attempts)::bigint AS attempts,
         sum(retries)::bigint AS retries, sum(failures)::bigint AS failures, sum(held_seconds) AS held_seconds
    FROM analytics_endpoints WHERE {SELECTED} GROUP BY subscription_id HAVING sum(failures) > 0
   ORDER BY sum(failures) DESC, subscription_id LIMIT 20),
classes AS (
  SELECT {NOBODYS_0} AS id, class, sum(number::bigint)::bigint AS number
    FROM analytics_endpoints, jsonb_each_text(by_class) AS b (class, number)
   WHERE {SELECTED} AND {NOBODYS_0} = ANY (ARRAY(SELECT {NOBODYS_0} FROM most)) GROUP BY 1, 2),
by_class AS (
  SELECT id, jsonb_object_agg(class, number) AS by_class FROM classes GROUP BY id)
SELECT most.*, by_class.by_class FROM most JOIN by_class ON id = {NOBODYS_0} ORDER BY failures DESC, subscription_id
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
