"""Scripts that transform messages, run in child processes (contract 8)."""
