"""The ordering audit of days that a correct broker made, and of the same days with faults planted in them."""

import datetime as dt
import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from random import Random
from typing import Any, Final

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from analytics.pipeline.transforms.audit import audit, findings
from analytics.vocabulary import vocabulary
from tests.support.correct_broker import CorrectBroker, History, WaitingDelivery, publish_random_day, publish_steadily
from tests.support.spark_frames import DAY, Row, rows_of, silver_of

pytestmark = pytest.mark.behaviour("4.10")

WORDS: Final = vocabulary()
DAYS: Final = 300
"""In one frame, each of a subscriber of its own: Spark takes as long for one."""
SEEDS: Final = st.lists(st.integers(0, 2**32), min_size=DAYS, max_size=DAYS, unique=True)
ONE: Final = settings(max_examples=1, deadline=None, derandomize=True, phases=[Phase.generate])
"""A day is made from its seed, and seeds do not get simpler: shrinking would only take time."""


def together(histories: Iterable[History]) -> dict[str, list[Row]]:
    rows: dict[str, list[Row]] = {"deliveries": [], "attempts": [], "status_changes": [], "releases": []}
    for history in histories:
        for name, more in history.rows().items():
            rows[name] += more
    return rows


def found_in(spark: SparkSession, rows: Mapping[str, list[Row]]) -> list[dict[str, Any]]:
    return rows_of(findings(silver_of(spark, **rows), WORDS))


SHARE: Final = 3
"""How many subscribers are sent the same messages."""

MIDNIGHT: Final = DAY + dt.timedelta(seconds=60)


def found_after(spark: SparkSession, midnight: dt.datetime, rows: Mapping[str, list[Row]]) -> list[dict[str, Any]]:
    """Audit what ended before midnight; return the findings after it, given only that audit."""
    deliveries, attempts = rows["deliveries"], rows["attempts"]
    until: dict[str, list[Row]] = {
        "deliveries": [
            {**one, "finished_at": ended(one) and (ended(one) if ended(one) < midnight else None)} for one in deliveries
        ],
        "attempts": [one for one in attempts if one["started_at"] < midnight],
    }
    since: dict[str, list[Row]] = {
        "deliveries": [one for one in deliveries if not ended(one) or ended(one) >= midnight],
        "attempts": [one for one in attempts if one["started_at"] >= midnight],
    }
    audited: list[Row] = [*rows_of(audit(silver_of(spark, **{**rows, **until}), WORDS))]
    return found_in(spark, {**rows, **since, "audit": audited})


def ended(delivery: Row) -> Any:
    return delivery.get("finished_at")


def histories_of(seeds: Iterable[int], *, calm: bool = False) -> list[History]:
    histories, publishes = [], []
    for number, seed in enumerate(seeds):
        random = Random(seed)  # noqa: S311 - nothing secret
        if number % SHARE == 0:
            publishes = publish_random_day(random, number * 1000)
        how = {"calm": calm, "prompt": not calm and number % 2 == 1, "keyed": number % 4 > 1}
        histories.append(CorrectBroker(number + 1, random, publishes, **how).day())
    return histories


@pytest.mark.behaviour("4.11")
@ONE
@given(SEEDS)
def test_everything_a_correct_broker_does_is_explained(spark: SparkSession, seeds: list[int]) -> None:
    found = found_in(spark, together(histories_of(seeds)))
    assert [one for one in found if not one["explanation"]] == []
    assert {one["explanation"] for one in found} == {
        "published at the same time",
        "released",
        "set aside before it was sent",
        "fetched from a mailbox before",
        "not active or paused",
        "subscriber not active or concurrent",
        "not yet due",
        "made later",
        "the outcome of a request was unknown; flagged",
    }


@pytest.mark.lengthy
@ONE
@given(SEEDS)
def test_everything_a_correct_broker_does_is_explained_across_midnight(spark: SparkSession, seeds: list[int]) -> None:
    found = found_after(spark, MIDNIGHT, together(histories_of(seeds)))
    assert [one for one in found if not one["explanation"]] == []
    assert "inversion" in {one["finding"] for one in found}


@dataclass(frozen=True)
class Planted:
    """A day with a fault in it, and what must be found."""

    rows: dict[str, list[Row]]
    found: tuple[str, int, int | None]


def swapped(history: History) -> Planted | None:
    """Give the day's first delivery and the last of its key each other's number, if they are over 2 s apart."""
    early = history.deliveries[0]
    *_, late = (one for one in history.deliveries if one.ordering_key == early.ordering_key)
    if late.created_at <= early.created_at + 2:
        return None
    numbers = {early.id: late.sequence, late.id: early.sequence}
    deliveries = [replace(one, sequence=numbers.get(one.id, one.sequence)) for one in history.deliveries]
    return Planted(replace(history, deliveries=deliveries).rows(), ("inversion", early.id, late.id))


def sent_once_more(history: History) -> Planted:
    """Send the last of the day's deliveries again after its answer."""
    rows = history.rows()
    last = rows["attempts"][-1]
    again = {**last, "id": last["id"] + 1, "number": last["number"] + 1}
    return Planted({**rows, "attempts": [*rows["attempts"], again]}, ("sent again", last["delivery_id"], None))


def numbered_alike(history: History) -> Planted:
    """Give the last of the day's deliveries the number of the first."""
    first, last = history.deliveries[0], history.deliveries[-1]
    deliveries = [replace(one, sequence=first.sequence) if one is last else one for one in history.deliveries]
    return Planted(replace(history, deliveries=deliveries).rows(), ("number given twice", last.id, first.id))


PLANTS: Final[list[Callable[[History], Planted | None]]] = [swapped, sent_once_more, numbered_alike]


@pytest.mark.behaviour("4.11")
def test_each_planted_fault_is_found_and_not_explained(spark: SparkSession) -> None:
    plants = itertools.cycle(PLANTS)
    tried = [plant(day) for plant, day in zip(plants, histories_of(range(DAYS), calm=True), strict=False)]
    planted = [one for one in tried if one]
    kinds = Counter(one.found[0] for one in planted)
    assert (len(kinds), min(kinds.values()) > DAYS / 6) == (3, True)
    rows: dict[str, list[Row]] = {name: [row for one in planted for row in one.rows[name]] for name in planted[0].rows}
    unexplained = {
        (one["finding"], one["delivery_id"], one["other_id"]) for one in found_in(spark, rows) if not one["explanation"]
    }
    assert {one.found for one in planted} <= unexplained


def test_swapped_neighbours_are_found_if_another_subscriber_was_sent_the_first_in_time(spark: SparkSession) -> None:
    publishes = publish_steadily(40, 1)
    histories = [
        CorrectBroker(number, Random(number), publishes, calm=True, prompt=True).day()  # noqa: S311
        for number in range(1, SHARE + 1)
    ]
    kept = together(histories[1:])
    swaps = [(one, other) for one, other in zip(histories[0].deliveries, histories[0].deliveries[1:], strict=False)][
        ::2
    ]
    numbers = {one.id: other.sequence for pair in swaps for one, other in (pair, pair[::-1])}
    sent = {one.id: other.id for pair in swaps for one, other in (pair, pair[::-1])}
    rows = histories[0].rows()
    started = {row["delivery_id"]: row["started_at"] for row in rows["attempts"]}
    kept["deliveries"] += [{**row, "sequence": numbers[row["id"]]} for row in rows["deliveries"]]
    kept["attempts"] += [{**row, "started_at": started[sent[row["delivery_id"]]]} for row in rows["attempts"]]
    found = found_in(spark, kept)
    assert sorted((one["delivery_id"], one["other_id"], one["explanation"]) for one in found) == [
        (one.id, other.id, "") for one, other in swaps
    ]


@pytest.mark.lengthy
@ONE
@given(SEEDS)
def test_inversions_are_those_of_the_definition(spark: SparkSession, seeds: list[int]) -> None:
    """Numbers at random: what comes before and has the greatest id, if that is greater than one's own."""
    histories = []
    for number, seed in enumerate(seeds, 1):
        random = Random(seed)  # noqa: S311
        history = CorrectBroker(number, random, publish_random_day(random, number * 1000), keyed=number % 2 == 1).day()
        numbers = random.sample(range(1, 100), len(history.deliveries))
        both = zip(history.deliveries, numbers, strict=True)
        deliveries = [replace(one, sequence=one.sequence and number) for one, number in both]
        histories.append(replace(history, deliveries=deliveries))
    found = found_in(spark, together(histories))
    assert {(one["delivery_id"], one["other_id"]) for one in found if one["finding"] == "inversion"} == {
        pair for history in histories for pair in inverted(history.deliveries)
    }


def inverted(deliveries: Iterable[WaitingDelivery]) -> set[tuple[int, int]]:
    sent = [one for one in deliveries if one.sequence]
    before = {
        one.id: [
            other.id
            for other in sent
            if other.ordering_key == one.ordering_key and other.sequence < one.sequence  # type: ignore[operator]
        ]
        for one in sent
    }
    return {
        (one.id, max(before[one.id])) for one in sent if one.finished_at and max(before[one.id], default=0) > one.id
    }
