"""The time since this machine started, by which leases and deadlines count."""

import time
from functools import partial
from typing import Final

since_boot: Final = partial(time.clock_gettime, time.CLOCK_BOOTTIME)
"""Return it in seconds: nobody sets it, and unlike `time.monotonic` it goes on while the machine is suspended.

Call it as `boot_clock.since_boot`, so that tests can replace it.
"""
