"""The Spark application: reads what happened, writes the lake, loads the summaries. It imports no Django.

It runs where Spark runs, with psycopg, pyarrow and pyspark. The broker's words come with its job.
Read in this order: `job` (what the worker tells it) · `tables` · `application` (a run) · `window` (one window, step by
step) · `extraction` (from PostgreSQL) · `transforms` (facts to summaries) · `checks` · `lake`, `lake_files`
· `manifests` · `load` (into PostgreSQL) · `connections`, `quantiles`.
"""
