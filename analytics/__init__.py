"""Summaries of what happened: Spark reads what is finished, keeps it as a lake, and loads what the admin shows.

Spark's executors import this package, where there is no Django: nothing is imported here.

computed: `pipeline` (the Spark application, without Django) · `vocabulary` (the broker's words for it)
run: `windows`, `outcomes`, `open_transactions`, `due` (what is to be summarized) · `requesting`, `running`, `tasks`,
`management` · `report_texts`, `run_ends`, `recording` (what came of it) · `spark_terms`, `lake_folder`, `java`,
`spark_environment`, `guard`, `guarded_process`, `spark_process`, `run_log` (Spark's process) · `forgetting` (what is
past its time)
kept: `models`
looked at: `ranges` · `summaries` (by name) · `figures` (added up for charts) · `files` (CSV, Parquet) ·
`api`, `admin`
"""
