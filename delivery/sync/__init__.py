"""SYNC: one endpoint is asked while the publisher waits, and its answer is the publisher's.

`failures` (why there is none) · `answers` (what is told, what is recorded) · `loop`, `caller` (requests and scripts
for threads that wait) · `statements`, `destinations`, `recording` · `calling` (the whole of it) · `rehearsing`
(the same with a test event, for whoever configures).
"""
