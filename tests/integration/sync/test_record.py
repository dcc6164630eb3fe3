"""A call keeps its ids while its endpoint is asked: nobody else may get them, even if PostgreSQL ends meanwhile."""

from contextlib import closing

import pytest

from broker_project.core.db import rows
from delivery.sync.record import BEGIN
from tests.support.database import another_connection

pytestmark = pytest.mark.django_db(transaction=True)

TAKEN_BY_ANOTHER = """
    SELECT setval(name, nextval(name)), nextval(name) FROM (VALUES ('delivery_message_id_seq'::regclass),
                                                                   ('delivery_delivery_id_seq')) AS sequences (name)
"""
"""PostgreSQL writes into its log then that ids are taken well beyond this one: the next are given without a word."""


@pytest.mark.behaviour("7.2")
def test_the_ids_of_a_call_are_durable_before_its_endpoint_is_asked() -> None:
    rows("SET synchronous_commit = on", [])  # tests do without
    with closing(another_connection()) as publishing, publishing.transaction(force_rollback=True):
        publishing.execute(TAKEN_BY_ANOTHER)
        ((said_at,),) = rows("SELECT pg_current_wal_insert_lsn()::text", [])
        rows(BEGIN, [None])
        ((is_durable,),) = rows("SELECT pg_current_wal_flush_lsn() >= %s::text::pg_lsn", [said_at])
    assert is_durable
