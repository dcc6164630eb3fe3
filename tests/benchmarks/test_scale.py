"""The benchmarks of growth and matching, small."""

import os

import pytest
from django.db import connection

from benchmarks.scenarios.scale import EMPTY, GROWN, run_growth, run_matching


@pytest.mark.lengthy
def test_growth_is_measured_for_all_that_a_delivery_goes_through(transactional_db: None) -> None:
    figures = run_growth(os.environ, lambda _: None, finished=1_000, waiting=100, rounds=3).figures
    assert [figure.name.partition(",")[0] for figure in figures] == [
        *("publish", "sweep", "claim", "read a page", "settle", "look again", "fetch", "acknowledge")
    ]
    assert all(figure.value > 0 and figure.unit == "times" for figure in figures)
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM pg_database WHERE datname IN (%s, %s)", [EMPTY, GROWN])
        assert cursor.fetchone() == (0,)


@pytest.mark.lengthy
def test_matching_is_measured_for_each_kind_of_filter_and_number_of_subscriptions(transactional_db: None) -> None:
    figures = run_matching(os.environ, lambda _: None, counts=(6, 60), rounds=3).figures
    assert [(figure.name, figure.unit) for figure in figures] == [
        ("header filters, 6", "ms"),
        ("header filters, 60 : 6", "times"),
        ("equality filters, 6", "ms"),
        ("equality filters, 60 : 6", "times"),
    ]
    assert all(figure.value > 0 for figure in figures)
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM pg_database WHERE datname LIKE 'broker_matching_%%'")
        assert cursor.fetchone() == (0,)
