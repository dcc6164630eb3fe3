"""Keeping data for as long as it is wanted: days opened ahead, and dropped when they are past their time.

`storage_days` (the partitions) · `kept_messages` (what something unfinished still needs) · `kept_days` (what waits for
its summary) · `retaining` · `forgetting` (jobs and counts) · `maintaining` (all of it, once in a while).
"""
