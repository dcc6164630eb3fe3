"""Publishing: what is stored, for whom, and exactly once."""
