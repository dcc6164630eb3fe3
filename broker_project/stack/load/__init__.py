"""The load kit for the demo, the benchmarks, the fault suite and the tests.

In reading order: `wait`, `receiver` (a scripted HTTP receiver).
"""
