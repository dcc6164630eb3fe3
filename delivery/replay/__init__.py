"""Send again: one delivery, many, or everything that a new subscription has missed (contract 5.8).

Read `eligibility`, `resubmit` (one), `replay_job` (many), `backfill_job` (a new subscription), then what they share:
`resend` and `job_steps`.
"""
