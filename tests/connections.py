"""Connections beside a test's own."""

from typing import Any

import psycopg
from django.db import connection


def another_connection() -> "psycopg.Connection[Any]":
    """Open a connection as the broker's own are, with the same settings of the planner."""
    parameters = connection.get_connection_params()
    names = parameters.keys() & {"host", "port", "user", "password", "dbname", "options"}
    return psycopg.connect(**{name: parameters[name] for name in names}, autocommit=True)
