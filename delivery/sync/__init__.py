"""SYNC: call one endpoint while the publisher waits, and return its answer (contract 7).

Read `call` (the whole of it, and its record), `answer` (what an answer means), then `caller` (threads that wait).
"""
