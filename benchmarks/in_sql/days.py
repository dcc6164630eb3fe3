"""Error budgets of a day, as far as it is known, from the summaries of the 28 days up to it."""

from typing import Final

from analytics.pipeline import tables

BUDGETS: Final = """
SELECT %(start)s::date AS day, subscriber_id, subscriber, eligible, bad, %(objective)s::float8 AS objective,
       eligible_28, bad_28, bad_28 / ((1 - %(objective)s::float8) * eligible_28::float8) AS spent
  FROM (SELECT subscriber_id, subscriber, sum(eligible) AS eligible_28, sum(eligible - delivered) AS bad_28,
               coalesce(sum(eligible) FILTER (WHERE hour >= %(start)s::date), 0) AS eligible,
               coalesce(sum(eligible - delivered) FILTER (WHERE hour >= %(start)s::date), 0) AS bad
          FROM pg_temp.reliability
         WHERE hour >= %(start)s::date - 27 AND hour < %(end)s AND subscriber_id IS NOT NULL
         GROUP BY 1, 2) r
 WHERE eligible_28 > 0
"""

BUDGET: Final = {tables.BUDGETS: BUDGETS}
