"""Publishing what was recorded to be announced, once and in order (behaviour 5.7)."""


def announce() -> int:
    """Publish the oldest announcements, unless somebody else is at it; return how many."""
    return 0


def tell_of_held_lines() -> int:
    """Record of lines held for over a minute that they are, and of others told of that they go on; return how many."""
    return 0
