"""Which of a message's subscriptions form a group."""

from dataclasses import dataclass

import hypothesis.strategies as st
import pytest
from hypothesis import given

from delivery.publish.routing import failure_of, groups_of

OPEN = "$$->'Body'->>'state' = 'open'"


@dataclass(frozen=True)
class One:
    name: str
    filter: str = ""
    by_header: bool = False
    failure: str = ""


@pytest.mark.behaviour("6.3")
@pytest.mark.parametrize(
    ("a", "b", "alike"),
    [
        (One("a"), One("b"), True),
        (One("a", OPEN), One("b", OPEN), True),
        (One("a", OPEN), One("b", "  $$ -> 'Body'\n->> 'state'\t=  'open' "), True),
        (One("a", f"{OPEN} AND $$->'Body'?'n'"), One("b", f"{OPEN} and $$->'Body' ? 'n'"), True),
        (One("a", OPEN), One("b", OPEN.replace("open", "OPEN")), False),
        (One("a", OPEN), One("b", OPEN.replace("open", "open ")), False),
        (One("a", OPEN), One("b"), False),
        (One("a", OPEN, by_header=True), One("b", OPEN), False),
        (One("a", by_header=True), One("b"), False),
        (One("a", by_header=True), One("b", by_header=True), True),
        (One("a", "no filter", failure="filter failed"), One("b", "no filter", failure="filter failed"), True),
        (One("a", "no filter", failure="filter failed"), One("b", "none either", failure="filter failed"), False),
    ],
)
def test_like_filters_form_a_group(a: One, b: One, alike: bool) -> None:
    assert groups_of([a, b]) == ([[a, b]] if alike else [[a], [b]])


@pytest.mark.behaviour("6.3")
@given(st.lists(st.tuples(st.sampled_from(["", OPEN, f" {OPEN}", f"NOT {OPEN}"]), st.booleans())))
def test_every_subscription_is_in_exactly_one_group_and_groups_keep_the_order(wishes: list[tuple[str, bool]]) -> None:
    qualified = [One(str(number), *wish) for number, wish in enumerate(wishes)]

    groups = groups_of(qualified)

    assert sorted((one for group in groups for one in group), key=qualified.index) == qualified
    assert len({(one.filter.strip(), one.by_header) for one in qualified}) == len(groups)
    assert [group[0] for group in groups] == sorted((group[0] for group in groups), key=qualified.index)
    assert all(group == sorted(group, key=qualified.index) for group in groups)


@pytest.mark.behaviour("3.6")
@pytest.mark.parametrize(
    ("failures", "failure"),
    [
        ([""], ""),
        (["no number"], "no number"),
        (["no number", "too much work"], "no number"),
        (["too much work", ""], ""),
    ],
)
def test_a_group_is_held_if_none_of_its_like_filters_could_be_evaluated(failures: list[str], failure: str) -> None:
    assert failure_of([One("a", OPEN, failure=one) for one in failures]) == failure
