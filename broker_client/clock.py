"""The clock by which the client holds what it has fetched."""

import time
from typing import Final

BOOT_TIME: Final[int | None] = getattr(time, "CLOCK_BOOTTIME", None)


def now() -> float:
    """Return seconds that nobody sets, and that pass while the machine is suspended too, where it has such a clock."""
    return time.monotonic() if BOOT_TIME is None else time.clock_gettime(BOOT_TIME)
