"""HTTP over libcurl: one thread, any number of requests, and a deadline and an egress check for each.

Read `client` (start, wait), `transfer` (one request, the addresses that it may go to, its answer), `sockets` (one
epoll), `wire_headers`, then `futures` (the same for other threads: SYNC calls, volatile messages, probes).
"""
