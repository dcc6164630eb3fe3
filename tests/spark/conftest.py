"""One Spark session for all tests in this folder, which therefore run in one process."""

import logging
import os
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import psycopg
import pytest
from django.core.management import call_command
from django.db import connection as of_django
from pyspark.sql import SparkSession
from pytest_django.plugin import DjangoDbBlocker

from analytics.pipeline.application import LOCAL_SETTINGS, SETTINGS
from analytics.pipeline.extraction.source import register
from analytics.spark_process import spark_environment
from benchmarks.history import write_history
from tests.support.spark_history import OVER_MIDNIGHT, UNTIL, database_address

SMALL = {
    "spark.master": "local[2]",
    "spark.driver.memory": "1g",
    # Compiled quickly, with room for all of it: else Java throws code away and compiles it again all the time.
    "spark.driver.extraJavaOptions": f"{SETTINGS['spark.driver.extraJavaOptions']} -XX:TieredStopAtLevel=1"
    " -XX:ReservedCodeCacheSize=256m",
    # Plans are carried out as they stand: to write Java for each, and compile that, takes longer than a few rows do.
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.shuffle.partitions": "2",
}
"""For frames of a few rows, and plans that run once; what they come to does not depend on it."""


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Spark as it runs on one machine, with the Java that is found there; made before anything forks it off."""
    folder = tmp_path_factory.mktemp("spark")
    ours = spark_environment(folder, master="local[2]", database_url="", environment=os.environ)
    builder = SparkSession.builder.appName("tests")
    for name, value in (SETTINGS | LOCAL_SETTINGS | SMALL).items():
        builder = builder.config(name, value)
    logging.getLogger("py4j").setLevel(logging.WARNING)  # it logs after pytest has closed its streams
    with pytest.MonkeyPatch.context() as environment:
        for name in ours.keys() - {"DATABASE_URL"}:
            environment.setenv(name, ours[name])
        session = builder.getOrCreate()
        yield session
        session.stop()


@pytest.fixture(scope="module")
def history(django_db_setup: None, django_db_blocker: DjangoDbBlocker) -> Iterator[psycopg.Connection[Any]]:
    """A history that everybody sees; give a connection to it."""
    with django_db_blocker.unblock():
        write_history(UNTIL, messages=4000, days=2, subscribers=4)
        with of_django.cursor() as cursor:
            cursor.execute("SELECT pg_stat_force_next_flush()")  # else PostgreSQL's counters move when they like
        with closing(psycopg.connect(database_address(), autocommit=True, options="-c timezone=UTC")) as connection:
            connection.execute(OVER_MIDNIGHT)
            yield connection
        call_command("flush", verbosity=0, interactive=False)


@pytest.fixture
def frames(spark: SparkSession, history: psycopg.Connection[Any]) -> SparkSession:
    """A session that knows where the history is."""
    register(spark, database_address())
    return spark
