"""The summaries as PostgreSQL alone makes them: plain SQL over the broker's tables, written apart from Spark's.

What `./broker bench summaries` measures beside Spark, and what a test compares Spark's rows with.

`words` (what statements know of the broker) · `facts` (what a window is made of, as temporary tables) · `totals` (the
summaries of it) · `days` (error budgets) · `summing`
"""

from benchmarks.in_sql.plain_sql import DAILY, HOURLY, sum_up

__all__ = ["DAILY", "HOURLY", "sum_up"]
