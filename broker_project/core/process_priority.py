"""How a process of ours lets others have the CPU first, whichever way Linux shares it out."""

import os
import time
from pathlib import Path
from typing import Final

AUTOGROUP: Final = Path("/proc/self/autogroup")
"""Where Linux shares the CPU out to sessions first (sched(7)), niceness counts within a session only. In its own one
a process cannot take what whoever started it is given, and that session is as nice as the process."""
AUTOGROUP_SECONDS: Final = 2.0
"""Linux takes the niceness of one session in 0.1 s, whoever asks."""
LOOK_SECONDS: Final = 0.02


def stand_back(niceness: int) -> None:
    """Be so much nicer, and let the session be so too; for a process with a session of its own."""
    os.nice(niceness)
    until = time.monotonic() + AUTOGROUP_SECONDS
    while time.monotonic() < until:
        try:
            AUTOGROUP.write_text(str(niceness))
        except BlockingIOError:
            time.sleep(LOOK_SECONDS)
        except OSError:
            return  # there are no such groups here
        else:
            return
