"""Periodic jobs, daily partitions, retention and expiry.

Read `periodic` (jobs every second, maintenance every hour), `partitions`, `retention`, `expiry`, then `clock` (times
that a clock has written while it was ahead).
"""
