"""Random histories: seeded schedules of two workers on a real PostgreSQL, with crashes between any two statements.

Read `history` (what can happen), `promises` (what holds all the same) and `world` (workers, and how they are broken).
"""
