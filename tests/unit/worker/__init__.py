"""Lines as pure generators, and what they take from their buffer."""
