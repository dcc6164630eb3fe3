"""Which of a message's subscriptions form a group."""

import hypothesis.strategies as st
import pytest
from hypothesis import given

from delivery.publish.routing import failure_of, filter_groups
from subscriptions.matching import Match

OPEN = "$$->'Body'->>'state' = 'open'"


def match(subscription_id: int, text: str = "", *, by_header: bool = False, failure: str = "") -> Match:
    return Match(0, subscription_id, 1, text, by_header, failure=failure)


@pytest.mark.behaviour("6.3")
@pytest.mark.parametrize(
    ("a", "b", "alike"),
    [
        (match(1), match(2), True),
        (match(1, OPEN), match(2, OPEN), True),
        (match(1, OPEN), match(2, "  $$ -> 'Body'\n->> 'state'\t=  'open' "), True),
        (match(1, f"{OPEN} AND $$->'Body'?'n'"), match(2, f"{OPEN} and $$->'Body' ? 'n'"), True),
        (match(1, OPEN), match(2, OPEN.replace("open", "OPEN")), False),
        (match(1, OPEN), match(2, OPEN.replace("open", "open ")), False),
        (match(1, OPEN), match(2), False),
        (match(1, OPEN, by_header=True), match(2, OPEN), False),
        (match(1, by_header=True), match(2), False),
        (match(1, by_header=True), match(2, by_header=True), True),
        (match(1, "no filter", failure="filter failed"), match(2, "no filter", failure="filter failed"), True),
        (match(1, "no filter", failure="filter failed"), match(2, "none either", failure="filter failed"), False),
    ],
)
def test_subscriptions_with_the_same_filters_form_a_group(a: Match, b: Match, alike: bool) -> None:
    assert filter_groups([a, b]) == ([[a, b]] if alike else [[a], [b]])


@pytest.mark.behaviour("6.3")
@given(st.lists(st.tuples(st.sampled_from(["", OPEN, f" {OPEN}", f"NOT {OPEN}"]), st.booleans())))
def test_every_subscription_is_in_exactly_one_group_and_groups_keep_the_order(wishes: list[tuple[str, bool]]) -> None:
    qualified = [match(number, text, by_header=by_header) for number, (text, by_header) in enumerate(wishes)]

    groups = filter_groups(qualified)

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
def test_a_group_is_held_if_none_of_its_filters_could_be_evaluated(failures: list[str], failure: str) -> None:
    assert failure_of([match(1, OPEN, failure=one) for one in failures]) == failure
