"""What the machine did not give: where its host let others have the CPU, no case can be judged by time."""

from pathlib import Path
from typing import Final

TOLD_PERCENT: Final = 5
"""Less says nothing."""
STEAL: Final = 7
"""Where `/proc/stat` has it, among user, nice, system, idle, iowait, irq and softirq."""


def ticks() -> list[int]:
    """Return what all CPUs together have done since the start, as Linux counts it."""
    return [int(count) for count in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1 : STEAL + 2]]


def stolen_since(before: list[int]) -> dict[str, float]:
    """Return the share of the CPU that others had, in percent, by its name; nothing where that is next to nothing."""
    passed = [now - then for now, then in zip(ticks(), before, strict=True)]
    percent = round(100 * passed[STEAL] / max(sum(passed), 1))
    return {"stolen_percent": percent} if percent >= TOLD_PERCENT else {}
