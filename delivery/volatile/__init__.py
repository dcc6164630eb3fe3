"""Volatile messages: never stored, sent at most once, outside the line, and counted (contract 2.9).

Read `publish_volatile` (in a web process: the message becomes one encrypted Celery task), `send_once` (in a worker: one
request for each subscription), then `counters`.
"""
