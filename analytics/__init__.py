"""Summaries by Spark, and what operators watch: the dashboard, live numbers, alerts, metrics for Prometheus.

Spark's executors import this package without Django, so this file imports nothing.
Read in this order: `windows`, `pending` (what is to be summarized) · `run_requests`, `runs`, `run_records` (a run, from
request to end) · `spark_process`, `guard` (the child process) · `pipeline` (the Spark application), `vocabulary` (the
broker's words for it) · `models`, `summaries`, `dashboard_queries` (what is read) · `api`,
`admin`, `management`, `tasks`.
"""
