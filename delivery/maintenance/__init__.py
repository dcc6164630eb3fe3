"""Periodic jobs, daily partitions, retention and expiry.

Read `periodic` (every second), `maintainer` (every minute), `partitions`, `retention`, `expiry`.
"""
