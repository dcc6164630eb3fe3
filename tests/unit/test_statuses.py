"""Which change of a delivery's status is legal (behaviour 10.1, 10.2)."""

import itertools

import pytest

from delivery.statuses import FINAL, LEGAL_CHANGES, UNFINISHED, DeliveryStatus

TABLE = """
                 PENDING IN_FLIGHT HELD DELIVERED REJECTED 3xxNOTSUPPORTED REDUNDANT FAILED EXPIRED CANCELLED
PENDING          -       x         x    -         -        -               x         -      x       x
IN_FLIGHT        x       -         x    x         x        x               x         x      x       x
HELD             x       -         -    -         -        -               x         -      x       x
DELIVERED        -       -         -    -         -        -               -         -      -       -
REJECTED         -       -         -    -         -        -               -         -      -       -
3xxNOTSUPPORTED  -       -         -    -         -        -               -         -      -       -
REDUNDANT        -       -         -    -         -        -               -         -      -       -
FAILED           -       -         -    -         -        -               -         -      -       -
EXPIRED          -       -         -    -         -        -               -         -      -       -
CANCELLED        -       -         -    -         -        -               -         -      -       -
"""
COLUMNS, *ROWS = [line.split() for line in TABLE.strip().splitlines()]
EXPECTED = {(row[0], column): mark == "x" for row in ROWS for column, mark in zip(COLUMNS, row[1:], strict=True)}


@pytest.mark.behaviour("10.2")
@pytest.mark.parametrize(("before", "after"), [*itertools.product(DeliveryStatus, repeat=2)])
def test_legal_changes(before: DeliveryStatus, after: DeliveryStatus) -> None:
    assert (after in LEGAL_CHANGES[before]) == EXPECTED[before.value, after.value]


@pytest.mark.behaviour("10.1")
def test_the_statuses_are_those_of_the_contract() -> None:
    assert {status.value for status in UNFINISHED} == {"PENDING", "IN_FLIGHT", "HELD"}
    assert {status.value for status in FINAL} == {
        "DELIVERED",
        "REJECTED",
        "3xxNOTSUPPORTED",
        "REDUNDANT",
        "FAILED",
        "EXPIRED",
        "CANCELLED",
    }
