"""Replays: many deliveries made again, a slice at a time (behaviour 5.8)."""


def go_on() -> int:
    """File the next slice of each replay under way that nobody else is at; return how many deliveries that made."""
    return 0
