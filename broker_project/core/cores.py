"""How many cores the processes of the broker may use."""

import math
import os
import re
from pathlib import Path
from typing import Final

CONTROL_GROUPS: Final = Path("/sys/fs/cgroup")
OWN_GROUPS: Final = Path("/proc/self/cgroup")
OWN_GROUP: Final = re.compile(r"^0::/(.*)$", re.MULTILINE)
"""Where this process is among the control groups of version 2."""


def usable_cores() -> int:
    """Return how many cores this process may use, by its affinity and by the quotas of its control groups.

    A container or service on a large machine has few. A quota of 2.5 cores counts as 3.
    """
    cores = len(os.sched_getaffinity(0))
    own = OWN_GROUP.search(OWN_GROUPS.read_text()) if OWN_GROUPS.exists() else None
    group = CONTROL_GROUPS / (own[1] if own else "")
    for file in (folder / "cpu.max" for folder in (group, *group.parents)):
        quota, _, period = file.read_text().partition(" ") if file.exists() else ("max", "", "")
        if quota != "max":
            cores = min(cores, math.ceil(int(quota) / int(period)))
    return cores
