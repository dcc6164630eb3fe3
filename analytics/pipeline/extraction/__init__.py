"""Reading closed windows of PostgreSQL into Spark: each task copies one slice of a table into Arrow.

Read in this order: `statements` (the SQL of each table) · `source` (Spark's data source: slices planned on the driver,
copied on the executors) · `row_counts` (what should have been read, and late data).
"""
