"""Have Spark summarize what has happened from an instant until now: as `summarize` does, but to the last moment.

Run as a module, with the environment of a broker in which nothing happens any more.
"""

import datetime as dt
import sys
import threading
import time

import django

django.setup()  # before any model is imported

from analytics import run_requests, runs
from analytics.models import Run, RunState
from analytics.spark_process import spark_settings

ENDED = {RunState.PASSED, RunState.FAILED}
AGAIN_SECONDS = 0.5


def summarize(since: dt.datetime) -> Run:
    """Return the run, done; one that the broker has begun meanwhile is waited for."""
    run = run_requests.create_range(since, run_requests.now(), again=True)
    while run.state not in ENDED:
        if runs.run(run.pk, spark_settings(), stopping=threading.Event()) is None:
            time.sleep(AGAIN_SECONDS)
        run.refresh_from_db()
    return run


if __name__ == "__main__":
    done = summarize(dt.datetime.fromisoformat(sys.argv[1]))
    sys.exit(f"{done.error}\n{done.log}" if done.state == RunState.FAILED else 0)
