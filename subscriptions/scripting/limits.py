"""What a script may use (behaviour 8.3)."""

from typing import Final

MAX_SOURCE_BYTES: Final = 64 * 1024
CPU_SECONDS: Final = 0.25
TRIAL_CPU_SECONDS: Final = 0.05
"""A script that uses more CPU than this is slow."""
TOTAL_SECONDS: Final = 2.0
MEMORY_BYTES: Final = 32 * 1024 * 1024
STACK_BYTES: Final = 256 * 1024
MAX_OUTPUT_BYTES: Final = 1024 * 1024
MAX_HEAD_BYTES: Final = 256 * 1024
"""What a process may answer beside the body: headers and parameter."""

TOO_MUCH_CPU: Final = f"it used more than {CPU_SECONDS * 1000:.0f} ms of CPU"
TOO_LONG: Final = f"it took longer than {TOTAL_SECONDS:g} s"
TOO_MUCH_OUTPUT: Final = "$outmessage is larger than 1 MiB"
TOO_LARGE_A_HEAD: Final = "$outheader and $param are too large"
TOO_MUCH_MEMORY: Final = f"it used more than {MEMORY_BYTES // 1024**2} MiB of memory"
