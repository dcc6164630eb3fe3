"""`python -m analytics.pipeline JOB.json`, or with `spark-submit`: does a job, and ends with its status."""

import os
import sys
from pathlib import Path
from typing import Final

from analytics.pipeline.application import Status, run
from analytics.pipeline.job import Job
from analytics.pipeline.reports import DESCRIPTOR, Reports

DATABASE: Final = "DATABASE_URL"
USAGE: Final = f"usage: python -m analytics.pipeline JOB.json (with {DATABASE} in the environment)"


def main(arguments: list[str]) -> int:
    """Do the job that a file describes."""
    if len(arguments) != 1 or DATABASE not in os.environ:
        print(USAGE, file=sys.stderr)
        return Status.NOT_DONE
    job = Job.from_json(Path(arguments[0]).read_text())
    descriptor = os.environ.get(DESCRIPTOR)
    with os.fdopen(int(descriptor) if descriptor else os.open(os.devnull, os.O_WRONLY), "w") as stream:
        return run(job, os.environ[DATABASE], Reports(stream, sys.stdout))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
