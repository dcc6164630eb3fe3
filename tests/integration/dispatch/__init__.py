"""How work reaches a worker: claims, turns, the sweep, recovery after a crash."""
