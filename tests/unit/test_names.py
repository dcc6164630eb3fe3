"""Which names are the broker's own."""

import pytest

from subscriptions.names import is_own


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
