"""Starts Spark as a job wants it: on this machine or on a cluster, where nothing of the project is installed."""

import os
import re
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession

from analytics.pipeline.job import Job

NAME: Final = "broker summaries"
PACKAGE: Final = Path(__file__).resolve().parents[1]
LOGGING: Final = Path(__file__).with_name("log4j2.properties")

EVERYWHERE: Final = {
    "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={LOGGING.as_uri()}",
    "spark.redaction.regex": "(?i)secret|password|token|access[.]?key|credential|database",
    "spark.sql.adaptive.coalescePartitions.parallelismFirst": "false",
    "spark.sql.ansi.enabled": "true",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    # A day in a megabyte where the default takes four thirds of it.
    "spark.sql.parquet.compression.codec": "zstd",
    # Other tools know no INT96.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.session.timeZone": "UTC",
    # What was done is kept for a page that nobody opens: without an end, a run of many windows would grow.
    "spark.sql.ui.retainedExecutions": "10",
    "spark.ui.retainedJobs": "50",
    "spark.ui.retainedStages": "50",
    "spark.ui.retainedTasks": "500",
    "spark.ui.showConsoleProgress": "false",
}
HERE: Final = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    # The lake is for whoever runs this: Hadoop goes by its own umask, whatever the process has.
    "spark.hadoop.fs.permissions.umask-mode": "077",
    # Small ones are put together again; a day of ten million rows still sorts in the memory of one.
    "spark.sql.shuffle.partitions": "32",
    "spark.ui.enabled": "false",
}


def settings(job: Job) -> dict[str, str]:
    """Return what Spark is to be told."""
    return {
        **EVERYWHERE,
        **(HERE if is_here(job.master) else {}),
        "spark.master": job.master,
        "spark.driver.memory": job.memory,
    }


def is_here(master: str) -> bool:
    """Say whether everything happens in one process of this machine."""
    return re.fullmatch(r"local(\[.*\])?", master) is not None


@contextmanager
def spark_session(job: Job) -> Iterator[SparkSession]:
    """Start Spark, or take the session there is (`spark-submit` has started one), and stop it in the end."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(NAME)
    for name, value in settings(job).items():
        builder = builder.config(name, value)
    with tempfile.TemporaryDirectory(prefix="broker-package-") as folder:
        spark = builder.getOrCreate()
        try:
            spark.sparkContext.addPyFile(str(packed(Path(folder))))
            yield spark
        finally:
            spark.stop()


def packed(folder: Path) -> Path:
    """Put into a folder what executors import, and return it: this package, which needs nothing of the project."""
    archive = folder / "analytics.zip"
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as package:
        for module in (PACKAGE / "__init__.py", *sorted((PACKAGE / "pipeline").rglob("*.py"))):
            package.write(module, module.relative_to(PACKAGE.parent))
    return archive
