"""The environment of Spark's application: what it needs, and no secret but the database's address.

That goes no other way: not in the job, nor on a command line, which everybody on the machine can read.
"""

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from analytics.spark_settings import java_home

ROOT: Final = Path(__file__).resolve().parents[1]
PASSED_ON: Final = ("HOME", "JDK_JAVA_OPTIONS", "LANG", "LC_ALL", "LOGNAME", "PATH", "USER")
"""Whoever it runs as, and what every Java of theirs is told, such as whose certificates to trust."""
PASSED_ON_BY_PREFIX: Final = ("AWS_", "AZURE_", "GOOGLE_", "HADOOP_", "KRB5", "PG")
"""What leads to object stores and the database."""
OF_A_CLUSTER: Final = ("PYSPARK_", "SPARK_", "YARN_")
"""Not passed on where Spark runs on this machine: they may belong to another Spark."""


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
