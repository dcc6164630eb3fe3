"""Runs of the application in a process of its own, as a worker starts it."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from analytics.pipeline.job import Job
from analytics.spark_settings import spark_environment
from tests.spark.summaries import database_address

KILLED = """
import os, signal, sys
from pathlib import Path
from analytics.pipeline.application import run
from analytics.pipeline.job import Job
from analytics.pipeline.reports import Reports

class Killing:
    def write(self, text):
        if sys.argv[2] in text:
            os.kill(os.getpid(), signal.SIGKILL)
    def flush(self):
        pass

run(Job.from_json(Path(sys.argv[1]).read_text()), os.environ["DATABASE_URL"], Reports(Killing(), sys.stdout))
"""
"""The application, killed by force the moment it tells of something."""

QUICK_START: Final = {"JAVA_TOOL_OPTIONS": "-XX:TieredStopAtLevel=1"}
"""For a run of a few rows it is not worth while to compile as well as Java can."""


@dataclass(frozen=True, slots=True)
class Ended:
    """How a process ended, and what it told."""

    status: int
    printed: str
    reports: list[Mapping[str, Any]]


def run_process(folder: Path, job: Job, *arguments: str, more: Mapping[str, str] | None = None) -> Ended:
    """Run the application, or another program instead of it, on a job; wait for its end."""
    scratch = folder / f"scratch-{job.run}"
    scratch.mkdir(parents=True)
    file = scratch / "job.json"
    file.write_text(job.as_json())
    reports, reporting = os.pipe()
    environment = os.environ | dict(more or {})
    variables = spark_environment(scratch, master=job.master, database_url=database_address(), environment=environment)
    command = arguments or ("-P", "-m", "analytics.pipeline", "JOB")
    with os.fdopen(reports) as told:
        ended = subprocess.run(
            [sys.executable, *(str(file) if one == "JOB" else one for one in command)],
            env=variables | {"BROKER_REPORT_FD": str(reporting), **QUICK_START} | dict(more or {}),
            cwd=scratch,
            pass_fds=[reporting],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        os.close(reporting)
        return Ended(ended.returncode, ended.stdout, [json.loads(line) for line in told])
