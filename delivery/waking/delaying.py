"""Deliveries that were not to be sent before their time (behaviour 2.13)."""


def begin_delayed() -> int:
    """Let those whose time has come take their places, and wake their lines; return how many."""
    return 0
