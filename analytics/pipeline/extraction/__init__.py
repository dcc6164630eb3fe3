"""Reading closed windows of PostgreSQL into Spark: each task copies one slice of a leaf, by name, into Arrow."""
