"""Figures of how deliveries ended: totals, error budgets, failing endpoints, callbacks."""

import datetime as dt
from dataclasses import dataclass
from typing import Final

from analytics.figures.selection import OF_ALL, OF_ONE, SELECTED, STEP, THEIRS, WITHIN, Selection, selected

COUNTS: Final = "hour, deliveries, eligible, delivered, first_attempt, by_status"
CHOSEN: Final = f"""
(SELECT {COUNTS} FROM analytics_totals WHERE {WITHIN} AND {OF_ALL}
 UNION ALL
 SELECT {COUNTS} FROM analytics_reliability WHERE {WITHIN} AND {OF_ONE}) AS chosen
"""
OUTCOMES: Final = f"""
SELECT {STEP}, status, sum(number::bigint)::bigint
  FROM {CHOSEN}, jsonb_each_text(by_status) AS s (status, number)
 GROUP BY 1, 2
"""
TOTALS: Final = f"""
SELECT COALESCE(sum(deliveries), 0)::bigint, COALESCE(sum(eligible), 0)::bigint,
       COALESCE(sum(delivered), 0)::bigint, COALESCE(sum(first_attempt), 0)::bigint
  FROM {CHOSEN}
"""

NOBODYS_0: Final = "COALESCE(subscription_id, 0)"
"""What replies to callbacks have in common; null equals nothing."""

CALLBACK_TOTALS: Final = f"""
SELECT COALESCE(sum(asked), 0)::bigint, COALESCE(sum(answered), 0)::bigint, COALESCE(sum(forwarded), 0)::bigint
  FROM analytics_callbacks WHERE {WITHIN}
"""


@dataclass(frozen=True, slots=True)
class Totals:
    """Deliveries that ended, and how many of them well."""

    deliveries: int
    eligible: int
    """Without those that somebody else took or somebody cancelled."""
    delivered: int
    first_attempt: int

    @property
    def success_rate(self) -> float | None:
        """The share of the eligible that were delivered; None of nothing."""
        return self.delivered / self.eligible if self.eligible else None

    @property
    def first_attempt_rate(self) -> float | None:
        """The share of the eligible that were delivered by their first attempt; None of nothing."""
        return self.first_attempt / self.eligible if self.eligible else None


def outcomes(selection: Selection) -> dict[tuple[dt.datetime, str], int]:
    """Return how many deliveries ended in each status, step by step."""
    return {(at, status): number for at, status, number in selected(OUTCOMES, selection)}


def totals(selection: Selection) -> Totals:
    """Return the sums over the whole range."""
    [sums] = selected(TOTALS, selection)
    return Totals(*sums)


LATEST: Final = f"""
SELECT day, subscriber, eligible_28, bad_28, objective, spent
  FROM (SELECT DISTINCT ON (subscriber_id) * FROM analytics_budgets
         WHERE day >= %(start)s AND day < %(end)s AND {THEIRS} ORDER BY subscriber_id, day DESC) AS latest
 ORDER BY spent DESC, subscriber LIMIT 20
"""


@dataclass(frozen=True, slots=True)
class Budget:
    """One subscriber's error budget of the 28 days up to a day."""

    day: dt.date
    subscriber: str
    eligible: int
    bad: int
    objective: float
    spent: float
    """The share of what may fail that has failed: 1.0 when all is spent."""


def budgets(selection: Selection) -> list[Budget]:
    """Return each subscriber's latest in the range, the most spent first."""
    return [Budget(*columns) for columns in selected(LATEST, selection)]


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


@dataclass(frozen=True, slots=True)
class Callbacks:
    """The sums of a range."""

    asked: int
    answered: int
    forwarded: int


def callbacks(selection: Selection) -> Callbacks:
    """Return how many were asked for, answered, and their replies forwarded to the original URL."""
    [sums] = selected(CALLBACK_TOTALS, selection)
    return Callbacks(*sums)
