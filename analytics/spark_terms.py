"""On what terms runs go on: where Spark runs, what it may take, and where it finds what it reads and keeps."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import quote, urlencode

from django.conf import settings
from django.db import connection
from psycopg.pq import Conninfo

OURS: Final = frozenset({"options", "connect_timeout", "client_encoding"})
"""Of our connections' parameters those that are for what we ask ourselves."""


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
