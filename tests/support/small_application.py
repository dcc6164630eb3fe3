"""A small program in Spark's place: does a job as its arguments say, and reports as Spark's does.

Run by its path: the job, then any of `fails=N` (the Nth window, from 1), `ends=N` (with status 7 before the Nth),
`quotes` (with characters that PostgreSQL cannot store), `dies` (is killed before the first), `hangs=N` (for ever, while
it reads the Nth), `gives up` (reports why and ends), `prints=BYTES`.
"""

import json
import os
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from analytics.pipeline.connections import only_run
from analytics.pipeline.job import Job, Window

UNSTORABLE = ": caf\0é \ud800"
REPORTS = int(os.environ["BROKER_REPORT_FD"])


def report(**values: Any) -> None:
    os.write(REPORTS, json.dumps(values).encode() + b"\n")


def report_window(window: Window, error: str) -> None:
    report(progress=f"{window} is read")
    report(
        window={"start": window.start.isoformat(), "end": window.end.isoformat()},
        state="FAILED" if error else "PASSED",
        inputs={},
        rows_read={"deliveries": 3},
        rows_written={"gold/reliability": 2},
        checks=[{"name": "parity of deliveries", "passed": not error, "found": error or "3 of 3"}],
        lake_bytes=1_000,
        seconds=0.5,
        error=error,
    )


def main(job: Job, behaviour: Mapping[str, str]) -> int:
    print("x" * int(behaviour.get("prints", 0)))
    if "dies" in behaviour:
        os.kill(os.getpid(), signal.SIGKILL)
    if "gives up" in behaviour:
        report(error="the lake is not writable" + (UNSTORABLE if "quotes" in behaviour else ""))
        return 2
    for number, window in enumerate(job.windows, 1):
        if behaviour.get("ends") == str(number):
            return 7
        report(progress="", position={"number": number, "total": len(job.windows), "step": "reading"})
        if behaviour.get("hangs") == str(number):
            time.sleep(3600)
        error = "a check failed" if behaviour.get("fails") == str(number) else ""
        error += UNSTORABLE if error and "quotes" in behaviour else ""
        report_window(window, error)
    return int("fails" in behaviour)


if __name__ == "__main__":
    path, *arguments = sys.argv[1:]
    with only_run(os.environ["DATABASE_URL"]):
        sys.exit(main(Job.from_json(Path(path).read_text()), dict(one.partition("=")[::2] for one in arguments)))
