"""Facts to summaries: pure functions of data frames."""
