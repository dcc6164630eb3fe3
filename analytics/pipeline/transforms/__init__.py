"""Facts to summaries: functions from frames to a frame, without clock, settings or user-defined functions.

Read in this order: `frames` (inputs, and what transforms share) · `silver` (facts with owner and class) · `hourly` ·
`audit` (the ordering audit, hourly too) · `daily`.

What the columns mean is said in docs/reference/summaries.md. No transform loses or multiplies a row whose ids are
unknown, so totals equal PostgreSQL's.
"""
