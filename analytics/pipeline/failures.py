"""Why something of a run failed, in a line for people; Spark's own words fill pages."""

import re
from typing import Final

import psycopg
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from analytics.pipeline.checks import FailedChecks
from analytics.pipeline.extraction import Unreadable
from analytics.pipeline.lake.manifests import UnknownManifest
from analytics.pipeline.run_lock import LockLost, NoAddress

OF_A_WINDOW: Final = (
    FailedChecks,
    Unreadable,
    UnknownManifest,
    PySparkException,
    Py4JError,
    psycopg.Error,
    OSError,
    ValueError,
)
"""What fails a window and leaves the next its chance: what was found, the database, Spark, or the lake.

Arrow and JSON raise ValueError for what is damaged.
"""
OF_A_RUN: Final = (LockLost, NoAddress, *OF_A_WINDOW)
"""What leaves no window its chance."""

OURS: Final = re.compile(r"^[\w.]*\.(?:Unreadable|DayGone): (.+)$", re.MULTILINE)
"""What a reader says, at the end of the traceback that Spark tells of it."""
CAUSE: Final = re.compile(r"^\s*Caused by: (?:[\w.$]+: )?(.+)$", re.MULTILINE)
MAX_CHARACTERS: Final = 500


def reason(failure: BaseException) -> str:
    """Return what went wrong: of Spark's report what was the cause of all the rest."""
    said = str(failure)
    found = OURS.findall(said) or CAUSE.findall(said)
    told = found[-1] if found else said.strip().partition("\n")[0]
    return " ".join(told.split())[:MAX_CHARACTERS] or type(failure).__name__
