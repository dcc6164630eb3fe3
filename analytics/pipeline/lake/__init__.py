"""The lake: one folder a table and a day; what counts is what the day's manifest names."""
