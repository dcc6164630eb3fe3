"""Windows, the lake, quantiles, checks, charts, and the process that runs Spark."""
