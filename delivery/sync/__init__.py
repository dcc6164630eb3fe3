"""SYNC: ask one endpoint while the publisher waits, and return its answer (contract 7)."""
