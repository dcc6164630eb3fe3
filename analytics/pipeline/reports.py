"""What a run tells while it goes on: whoever started it by JSON lines, people by what it prints."""

import datetime as dt
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TextIO

from analytics.pipeline.job import Window

DESCRIPTOR: Final = "BROKER_REPORT_FD"
"""The variable that names the descriptor for reports; none, and they go nowhere."""
PASSED: Final = "PASSED"
FAILED: Final = "FAILED"


@dataclass(frozen=True, slots=True)
class Check:
    """Something that must be so, and what was found."""

    name: str
    passed: bool
    found: str


@dataclass(slots=True)
class Done:
    """What is known of a window, as far as it got."""

    inputs: dict[str, int] = field(default_factory=dict)
    """What the leaves held when they were read: `{leaf: rows}`."""
    rows_read: dict[str, int] = field(default_factory=dict)
    """By the name of a table of bronze."""
    rows_written: dict[str, int] = field(default_factory=dict)
    """By the path of a table of silver and gold."""
    checks: tuple[Check, ...] = ()
    lake_bytes: int = 0


class Reports:
    """Tells one run."""

    def __init__(self, stream: TextIO, printed: TextIO) -> None:
        self._stream = stream
        self._printed = printed

    def ready(self, seconds: float) -> None:
        """Spark has started."""
        self._tell({"ready": round(seconds, 3)})

    def progress(self, text: str) -> None:
        """Something has been done."""
        print(f"{dt.datetime.now(dt.UTC):%H:%M:%S} {text}", file=self._printed, flush=True)
        self._tell({"progress": text})

    def passed(self, window: Window, done: Done, seconds: float) -> None:
        """A window is summarized."""
        self._window(window, PASSED, done, seconds, "")
        self.progress(f"{window}: summarized in {seconds:.1f} s")

    def failed(self, window: Window, done: Done, seconds: float, error: str) -> None:
        """A window is not summarized: its summaries are what they were; so is the lake, unless loading has failed."""
        self._window(window, FAILED, done, seconds, error)
        self.progress(f"{window}: FAILED: {error}")

    def ended(self, error: str) -> None:
        """The run has ended before its windows were done."""
        print(f"summaries: {error}", file=self._printed, flush=True)
        self._tell({"error": error})

    def _window(self, window: Window, state: str, done: Done, seconds: float, error: str) -> None:
        self._tell(
            {
                "window": {"start": window.start.isoformat(), "end": window.end.isoformat()},
                "state": state,
                "inputs": done.inputs,
                "rows_read": done.rows_read,
                "rows_written": done.rows_written,
                "checks": [{"name": one.name, "passed": one.passed, "found": one.found} for one in done.checks],
                "lake_bytes": done.lake_bytes,
                "seconds": round(seconds, 3),
                "error": error,
            }
        )

    def _tell(self, report: Mapping[str, Any]) -> None:
        print(json.dumps(report), file=self._stream, flush=True)
