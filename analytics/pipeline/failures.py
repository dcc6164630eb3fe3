"""Why something of a run failed, in a line for people; Spark's own words fill pages."""

import re
from typing import Final

import psycopg
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from analytics.pipeline.checks import FailedChecks
from analytics.pipeline.extraction import Unreadable
from analytics.pipeline.lake.manifests import UnknownManifest
from analytics.pipeline.run_lock import LockLost

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
"""What fails a window and leaves the next its chance: the database, the lake, Spark, or what was found.

Arrow raises OSError and ValueError.
"""
OF_A_RUN: Final = (LockLost, *OF_A_WINDOW)
"""What leaves no window its chance."""

CAUSE: Final = re.compile(r"^\s*Caused by: (?:[\w.$]+: )?(.+)$", re.MULTILINE)
PYTHON: Final = re.compile(r"^\s*(?:[\w.]+\.)?(\w+(?:Error|Exception|Refused|Failure)|[A-Z]\w+): (.+)$", re.MULTILINE)
"""The last line of a Python traceback, as a reader on an executor leaves it."""
MOST_CHARACTERS: Final = 500


def reason(failure: BaseException) -> str:
    """Return what went wrong, in one line: of Spark's report what was the cause of all the rest."""
    text = str(failure) if isinstance(failure, PySparkException) else _of_java(failure)
    return " ".join(_cause(text).split())[:MOST_CHARACTERS] or type(failure).__name__


def _of_java(failure: BaseException) -> str:
    java = getattr(failure, "java_exception", None)
    return f"{failure}" if java is None else f"{java}\n{failure}"


def _cause(text: str) -> str:
    """Return the innermost cause that a report tells, or else its beginning."""
    causes = CAUSE.findall(text)
    return str(causes[-1]) if causes else text.strip().partition("\n")[0]
