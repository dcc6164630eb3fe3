"""Backfills: what was published before a subscription, lined up before what is published now (behaviour 5.8)."""


def go_on() -> int:
    """File the next slice of each backfill under way that nobody else is at; return how many deliveries that made."""
    return 0
