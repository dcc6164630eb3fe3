"""Messages that are never stored: sent once, or lost (behaviour 2.9)."""
