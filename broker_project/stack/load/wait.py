"""Waiting for a condition with a deadline."""

import time
from collections.abc import Callable
from typing import Final

PATIENCE_SECONDS: Final = 60.0
"""How long to wait for what must happen, however busy the machine is."""


def wait_until(
    condition: Callable[[], object], seconds: float = PATIENCE_SECONDS, *, saying: Callable[[], object] = str
) -> None:
    """Wait until the condition holds; raise `TimeoutError` after `seconds`, with what `saying` returns."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() >= end:
            raise TimeoutError(f"not within {seconds} s: {saying()}")
        time.sleep(0.005)
