"""The Spark application: reads what happened, writes the lake, loads the summaries; knows no Django.

It runs where Spark runs, its readers on the executors, with psycopg, pyarrow and pyspark beside it. What it must know
of the broker's words (statuses, kinds, what holds a line) comes with its `job`.

said: `job` (what is to be done, and in which words) · `reports` (what it tells while it runs)
kept: `tables` (the columns of every table in the lake)
read: `extraction` (closed windows of PostgreSQL, a slice a task)
made: `quantiles` · `transforms` (facts to summaries: `DataFrame -> DataFrame`)
stored: `lake` (days, staging, manifests) · `loading` (summaries into PostgreSQL) · `totals` (of all
subscribers)
checked: `looks` (what a table holds, in figures) · `checks` (what must be so)
done: `session` · `run_lock` · `making` (layer by layer) · `summarizing` (a window) · `failures` ·
`remaking` (days after it) · `application` (a run)
"""
