"""Names of event types, and patterns that match them."""

import pytest
from django.core.exceptions import ValidationError

from subscriptions.names import is_own, patterns_of, validate_pattern


@pytest.mark.behaviour("5.7")
@pytest.mark.parametrize(
    ("name", "own"),
    [
        ("Broker.Delivery.Failed", True),
        ("Broker.", True),
        ("Broker", False),
        ("Brokerage.Opened", False),
        ("broker.Delivery", False),
        ("My.Broker.Delivery", False),
    ],
)
def test_the_brokers_own_events_begin_with_its_name(name: str, own: bool) -> None:
    assert is_own(name) is own


@pytest.mark.behaviour("1.9")
@pytest.mark.parametrize("pattern", ["*", "TeamForge.*", "TeamForge.Artifact.*", "a-b_c.1.*", "a" * 253 + ".*"])
def test_a_pattern_is_the_beginning_of_a_name_up_to_a_dot(pattern: str) -> None:
    validate_pattern(pattern)


@pytest.mark.behaviour("1.9")
@pytest.mark.parametrize(
    "pattern",
    ["", ".*", "TeamForge", "TeamForge*", "TeamForge.Art*", "*.Create", "A.*.C", "**", "A.**", "A.*\n", "Ä.*", " A.*"],
)
def test_an_invalid_pattern_is_refused_with_a_hint(pattern: str) -> None:
    with pytest.raises(ValidationError, match="followed by"):
        validate_pattern(pattern)


def test_a_pattern_is_no_longer_than_a_name() -> None:
    with pytest.raises(ValidationError, match="at most 255 characters, this one 256"):
        validate_pattern("a" * 254 + ".*")


@pytest.mark.behaviour("1.9")
@pytest.mark.parametrize(
    ("name", "patterns"),
    [
        ("Order", {"*"}),
        ("TeamForge.Artifact.Create", {"*", "TeamForge.*", "TeamForge.Artifact.*"}),
        ("A..B", {"*", "A.*", "A..*"}),
        ("A.", {"*", "A.*"}),
        ("Broker", {"*"}),
        ("Brokers.Met", {"*", "Brokers.*"}),
    ],
)
def test_an_event_type_is_matched_by_the_patterns_of_all_its_prefixes(name: str, patterns: set[str]) -> None:
    assert set(patterns_of(name)) == patterns


@pytest.mark.behaviour("5.7")
def test_the_brokers_own_events_are_not_matched_by_the_pattern_for_everything() -> None:
    assert set(patterns_of("Broker.Line.Paused")) == {"Broker.*", "Broker.Line.*"}
