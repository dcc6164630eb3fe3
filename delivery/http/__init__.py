"""HTTP over libcurl: one thread, any number of requests, and a deadline and an egress check for each.

Read `client` (start, wait), `transfer` (one request, and the gate that checks addresses), `sockets` (one epoll),
`headers`, then `futures` (the same for other threads: SYNC calls, volatile messages, probes).
"""
