"""One Spark session for all tests in this folder, which therefore run in one process."""

import logging
import os
from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from analytics.pipeline.session import EVERYWHERE, HERE
from analytics.spark_environment import spark_environment

SMALL = {
    "spark.master": "local[2]",
    "spark.driver.memory": "1g",
    "spark.driver.extraJavaOptions": f"{EVERYWHERE['spark.driver.extraJavaOptions']} -XX:TieredStopAtLevel=1",
    "spark.sql.shuffle.partitions": "2",
}
"""For frames of a few rows, and code that runs a few times; what they come to does not depend on it."""


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Spark as it runs on one machine, with the Java that is found there; made before anything forks it off."""
    folder = tmp_path_factory.mktemp("spark")
    ours = spark_environment(folder, master="local[2]", database_url="", environment=os.environ)
    builder = SparkSession.builder.appName("tests")
    for name, value in (EVERYWHERE | HERE | SMALL).items():
        builder = builder.config(name, value)
    logging.getLogger("py4j").setLevel(logging.WARNING)  # it still talks when nobody listens any more
    with pytest.MonkeyPatch.context() as environment:
        for name in ours.keys() - {"DATABASE_URL"}:
            environment.setenv(name, ours[name])
        session = builder.getOrCreate()
        yield session
        session.stop()
