"""The benchmark of growth, small: it measures everything it promises, and leaves nothing behind."""

import os

import pytest
from django.db import connection

from benchmarks.scenarios.scale import EMPTY, GROWN, measure_growth


@pytest.mark.lengthy
def test_growth_is_measured_for_all_that_a_delivery_goes_through(transactional_db: None) -> None:
    figures = measure_growth(os.environ, lambda _said: None, finished=1_000, waiting=100, rounds=3)
    assert [figure.figure.partition(",")[0] for figure in figures] == [
        *("publish", "sweep", "claim", "read a page", "settle", "look again", "fetch", "acknowledge")
    ]
    assert all(figure.value > 0 and figure.unit == "times" for figure in figures)
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM pg_database WHERE datname IN (%s, %s)", [EMPTY, GROWN])
        assert cursor.fetchone() == (0,)
