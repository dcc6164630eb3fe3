"""What may have been in force when, for the fault cases in which admins edit."""

import time

import pytest

from tests.faults.in_force import InForce


def test_before_and_after_a_change_one_value_is_in_force_and_during_it_both() -> None:
    setting = InForce("old")
    begun = time.monotonic()
    with setting.changing("new"):
        during = time.monotonic()
    after = time.monotonic()
    assert setting.between(0, begun - 1) == {"old"}
    assert setting.between(during, during) == {"old", "new"}
    assert setting.between(after, after + 1) == {"new"}
    assert setting.between(begun - 1, after + 1) == {"old", "new"}
    assert setting.now == "new"


def test_a_change_that_failed_counts_for_nothing() -> None:
    setting = InForce("old")
    with pytest.raises(ZeroDivisionError), setting.changing("new"):
        raise ZeroDivisionError
    assert setting.between(0, time.monotonic() + 1) == {"old"}
