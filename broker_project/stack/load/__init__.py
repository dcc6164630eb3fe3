"""The load kit for the demo, the fault suite, the benchmarks and the tests.

In reading order: `wait`, `receiver` (a scripted HTTP receiver), `exchanges` (what was published and what arrived),
`endpoint` (a subscriber that records its exchanges), `publisher` (publishers and callers), `management` (the management
API). The benchmarks publish and receive over raw sockets instead (`benchmarks/publisher.py`, `benchmarks/sink.py`),
because the CPU time of their load counts.
"""
