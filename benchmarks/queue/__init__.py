"""Scenarios of queues: a few endpoints that share the jobs, five senders."""
