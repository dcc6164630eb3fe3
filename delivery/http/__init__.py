"""HTTP over libcurl: one thread, any number of requests, and a deadline and an egress check for each.

Read `client` (start and wait), `sockets` (what it watches), `transfer` (one request, the addresses that it may go to,
its answer), `resolver` (look-ups of host names), then `futures` (the same for other threads: SYNC
calls, volatile messages, probes).
"""
