"""Periodic jobs, daily partitions, retention, expiry and live numbers.

Read `periodic` (jobs every second, maintenance every hour), `partitions`, `retention`, `expiry`, `clock` (times that a
clock has written while it was ahead), then `minutes` (live numbers).
"""
