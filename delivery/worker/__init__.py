"""The loop: one thread a process drives any number of lines side by side, a round at a time.

a round: `unsettled` (kept until the database has them), `batches` (what a round settles) · `lingering`, `pacing`,
`resting` (strands that wait) · `paging` · `scripting` · `rounds`
a worker: `releasing` (what follows when a line is let go) · `driver` · `turns` (from a Celery task to the driver) ·
`attending` (what is due by the clock alone) · `running` (a worker process)
"""
