"""The load kit of the demo, the fault suite and the tests.

In reading order: `wait`, `receiver` (a scripted HTTP receiver), `exchanges` (what was published and what arrived),
`publisher` (publishers and callers), `management_client` (the management API). The benchmarks publish and receive over
raw sockets instead (`benchmarks/publisher.py`, `benchmarks/sink.py`), because the CPU time of their load counts.
"""
