"""How often rows are sent from task to task, which is what a summary costs: planned here, and not run."""

import pytest
from pyspark.sql import DataFrame, SparkSession

from analytics.pipeline.tables import ENDPOINTS, LATENCY, RELIABILITY, VOLUME, Table
from analytics.pipeline.transforms.hourly import HOURLY_SUMMARIES
from analytics.pipeline.transforms.silver import silver
from analytics.vocabulary import vocabulary
from tests.frames import DAY, WINDOW, facts

WORDS = vocabulary()


def exchanges(made: DataFrame, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """Return by what rows are exchanged on the way to `made`."""
    made.explain()
    lines = capsys.readouterr().out.splitlines()
    return sorted(
        line.partition("Exchange hashpartitioning(")[2].partition("#")[0] for line in lines if "Exchange h" in line
    )


def test_silver_exchanges_each_fact_once_and_names_never(
    spark: SparkSession, capsys: pytest.CaptureFixture[str]
) -> None:
    given = facts(
        spark,
        lines=[{"id": 1, "sender": 1}],
        **{name: [{"id": 1}] for name in ("subscriptions", "subscribers", "event_types", "publishers")},
        deliveries=[{"id": 1}],
        unfinished=[{"id": 2}],
        attempts=[{"id": 1, "delivery_id": 1}],
        messages=[{"id": 1}],
    )
    made = silver(given, WORDS)
    assert exchanges(made.deliveries, capsys) == ["id"]
    assert exchanges(made.attempts, capsys) == ["delivery_id", "id"]
    assert exchanges(made.messages, capsys) == ["id"]


@pytest.mark.parametrize("table", [RELIABILITY, LATENCY, ENDPOINTS, VOLUME], ids=lambda table: table.name)
def test_a_summary_exchanges_what_has_been_counted_and_no_rows(
    spark: SparkSession, table: Table, capsys: pytest.CaptureFixture[str]
) -> None:
    given = facts(
        spark,
        deliveries=[{"id": 1, "finished_at": DAY, "status": WORDS.delivered}],
        attempts=[{"id": 1, "delivery_id": 1}],
        messages=[{"id": 1}],
    )
    clean = silver(given, WORDS)
    assert exchanges(HOURLY_SUMMARIES[table](clean, WINDOW, WORDS), capsys).count("hour") == 2
