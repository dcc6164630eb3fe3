"""Whether the lake can be written to, looked at before Spark takes half a minute to find out."""

import os
from pathlib import Path
from typing import Final

NOT_WRITABLE: Final = "The lake {} cannot be written to: {}. BROKER_LAKE says where it is."


def problem_of(lake: str) -> str:
    """Return why a folder cannot be the lake, and what to do; empty if it can, or is the URL of something else."""
    if "://" in lake:
        return ""
    try:
        Path(lake).mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as failure:
        return NOT_WRITABLE.format(lake, failure.strerror)
    return "" if os.access(lake, os.W_OK | os.X_OK) else NOT_WRITABLE.format(lake, "permission denied")
